"""MACS workbench: flags, start the engine, launch the page."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from macs.engine.base import EngineFailure
from macs.engine.start import add_flags, chosen, start
from macs.view.examples import find_examples
from macs.view.page import build_page, launch_options

ASSETS = Path(__file__).parent / "assets"


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Return the flags."""
    parser = argparse.ArgumentParser(description="The MACS workbench in a browser.")
    parser.add_argument("--model", default=str(ASSETS / "demo_model"), help="folder or hub id (default: the embedded model)")
    parser.add_argument("--ep-size", type=int, help="ranks over which the experts are placed (default: up to 4)")
    add_flags(parser)
    parser.add_argument("--examples", type=Path, default=ASSETS / "examples", help="folder of recorded examples")
    parser.add_argument("--host", help="address to listen on (default: GRADIO_SERVER_NAME if it is set, as on Spaces, else this machine alone)")
    parser.add_argument("--port", type=int, help="port to listen on (default: the first free one from 7860)")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Serve the page until it is interrupted; bad flags end with one sentence and exit code 2."""
    flags = parse(argv)
    try:
        examples = find_examples(flags.examples)
        engine = start(flags.model, ep_size=flags.ep_size, **chosen(flags))
    except (ValueError, EngineFailure) as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1
    try:
        page = build_page(engine, examples)
        page.launch(server_name=flags.host, server_port=flags.port, show_error=True, **launch_options())
    finally:
        engine.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
