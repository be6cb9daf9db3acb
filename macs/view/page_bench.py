"""``python -m macs bench page``: first paint and slider redraw in a real browser, and one JSON line. Needs playwright and Chromium."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator

from macs.config import preset
from macs.engine.base import DEMO_MODEL, EXAMPLES
from macs.engine.compare import Comparison
from macs.engine.synthetic import synthetic
from macs.trace_file import load_trace
from macs.view.examples import find_examples
from macs.view.export import around

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update"]
SETTLE = 3000  # milliseconds after the first paint, in which the page asks for its language and its curves
BUDGET = {"first_paint": 3.0, "slider": 0.3, "slider_large": 1.5}  # seconds
# Waits in the page itself for the first change of the ledger's note, so that the driver's own delays do not count.
MOVE = """([from, to]) => new Promise((done) => {
  const note = () => document.querySelector('tr[data-row="policy"] th small')?.textContent;
  const slider = document.querySelector('#set-gamma input[type=range]'), before = note(), start = performance.now();
  slider.value = to;
  slider.dispatchEvent(new Event('input', { bubbles: true }));
  slider.dispatchEvent(new Event('change', { bubbles: true }));
  const look = () => (note() !== before ? done((performance.now() - start) / 1000) : requestAnimationFrame(look));
  look();
})"""


@dataclass(frozen=True)
class _Held:
    """An example that is in memory already."""

    name: str
    prompt: str
    comparison: Comparison
    picture: Path | None = None

    def load(self) -> Comparison:
        return self.comparison


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument("--model", default=str(DEMO_MODEL))
    parser.add_argument("--examples", type=Path, default=EXAMPLES)
    parser.add_argument("--large", help="a trace file for the second slider budget (default: made-up scores, 48 layers of 128 experts, 1,500 tokens)")
    parser.add_argument("--chromium", default=os.environ.get("CHROMIUM", "/usr/bin/chromium"))
    parser.add_argument("--moves", type=int, default=10)


def main(args: argparse.Namespace) -> int:
    """Measure and print; raises ValueError where the examples or the trace file cannot be read."""
    from macs.engine.start import start

    engine = start(args.model, ranks=1)
    first = _measure(engine, find_examples(args.examples), args)
    times = {"first_paint": first[0], "slider": first[1]}
    comparison = around(load_trace(args.large) if args.large else synthetic(48, 128, 8, 1500, 8).reschedule(preset("macs")))
    times["slider_large"] = _measure(engine, [_Held("large", comparison.policy.prompt, comparison)], args)[1]
    for name, values in times.items():
        print(f"{name:<13} median {statistics.median(values):.3f} s, slowest {max(values):.3f} s of {len(values)}; budget {BUDGET[name]:g} s")
    print(json.dumps({name: {"median": statistics.median(v), "slowest": max(v), "budget": BUDGET[name]} for name, v in times.items()}))
    engine.close()
    return 0


def _measure(engine: Any, examples: Any, args: argparse.Namespace) -> tuple[list[float], list[float]]:
    """Return the seconds to the first paint of three visits, and of each move of the slider after one to warm up."""
    with _served(engine, examples) as address, _browser(args.chromium) as browser:
        paints = []
        for _ in range(3):
            page = browser.new_context(viewport={"width": 1400, "height": 900}).new_page()
            start = time.perf_counter()
            page.goto(address, wait_until="commit")
            page.locator("#ledger table").wait_for(timeout=120_000)
            paints.append(time.perf_counter() - start)
        page.wait_for_timeout(SETTLE)
        values = [round(0.5 + 0.05 * (i % 8) + 0.8 * (i % 2), 2) for i in range(args.moves + 1)]
        moves = [page.evaluate(MOVE, [None, value]) for value in values]
    return paints, moves[1:]


@contextmanager
def _served(engine: Any, examples: Any) -> Iterator[str]:
    from macs.view.page import build_page, launch_options

    page = build_page(engine, examples)
    _, address, _ = page.launch(prevent_thread_lock=True, quiet=True, server_name="127.0.0.1", **launch_options())
    try:
        yield address
    finally:
        page.close()


@contextmanager
def _browser(executable: str) -> Iterator[Any]:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise ValueError("bench page drives a browser; install playwright and Chromium, and name it with --chromium.") from None
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        yield browser
        browser.close()
