"""``python -m macs record``: run the page's examples with the embedded model and keep the traces beside them."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from macs.config import preset
from macs.engine.base import DEMO_MODEL, EXAMPLES, Request
from macs.engine.compare import compare, save_comparison
from macs.engine.intake import open_image


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument("--examples", type=Path, default=EXAMPLES, help="folder with examples.json and its pictures")
    parser.add_argument("--model", default=str(DEMO_MODEL), help="folder or hub id (default: the embedded model)")
    parser.add_argument("--gamma", type=float, default=0.6, help="at 1.0 and the paper's capacity basis MACS hardly shortens a layer of the embedded model")
    parser.add_argument("--delta", type=float, default=1.0)


def main(args: argparse.Namespace) -> int:
    """Record every example; raises ValueError if the folder holds none."""
    from macs.engine.local import LocalEngine

    listing = args.examples / "examples.json"
    if not listing.is_file():
        raise ValueError(f"{args.examples} has no examples.json; name a folder that has one.")
    engine = LocalEngine(args.model)
    policy = preset("macs", gamma=args.gamma, delta=args.delta)
    for example in json.loads(listing.read_text()):
        image = open_image(args.examples / example["file"]).image if example.get("file") else None
        name = Path(example["file"]).stem if example.get("file") else example["family"]
        comparison = compare(engine, Request(example["prompt"], image), policy)
        save_comparison(comparison, args.examples / name)
        print(f"{name}: vanilla {comparison.vanilla.answer!r}, macs {comparison.policy.answer!r}, expected {example.get('answer')!r}")
    return 0
