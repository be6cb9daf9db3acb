"""``python -m macs calibrate``: run example prompts as the router wants them and find each expert's modality (MACS §3.3)."""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator

import numpy as np
from PIL.Image import Image

from macs.config import checked_number
from macs.engine.base import CALIBRATION_SET, DEMO_MODEL
from macs.engine.intake import open_image
from macs.engine.start import add_loading_flags, loading
from macs.trace import Trace


@dataclass(frozen=True)
class Example:
    """One prompt of a calibration set, with the picture it is about (a file, or already drawn) or none."""

    prompt: str
    file: Path | None = None
    drawn: Image | None = None

    def picture(self) -> Image | None:
        """Return the upright RGB picture, or None; raises ValueError if the file cannot be used."""
        return open_image(self.file).image if self.file else self.drawn


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument("--model", default=str(DEMO_MODEL), help="folder or hub id (default: the embedded model)")
    parser.add_argument(
        "--examples",
        type=Path,
        default=CALIBRATION_SET,
        help="a JSON list or JSON lines of {prompt, file}, file relative to it, or a folder with examples.json or .jsonl in it (default: 16 that ship)",
    )
    parser.add_argument("--scenes", type=int, metavar="N", help="for the embedded model: N drawn scenes and questions of its own world instead")
    add_loading_flags(parser)
    parser.add_argument("--margin", type=float, default=0.2, help="how far from 0.5 a preference must be (0 to 0.5)")
    parser.add_argument("--out", type=Path, help="write here (default: beside the model, or the user's cache)")


def main(args: argparse.Namespace) -> int:
    """Calibrate and write one JSON file; raises ValueError with one sentence on bad input."""
    checked_number("margin", args.margin, 0.0, 0.5)
    examples = read_examples(args.examples) if args.scenes is None else drawn_examples(args.scenes)
    from macs.model import load  # after the checks: loading a model takes seconds
    from macs.model.calibration import calibration_path, write_calibration

    loaded = load(args.model, **loading(args))
    total = args.scenes or len(examples)

    def report(number: int, example: Example) -> None:
        line = f"{number}/{total}: {example.prompt[:60]!r:<64}"
        print(f"\r{line}" if sys.stderr.isatty() else line, end="" if sys.stderr.isatty() else "\n", file=sys.stderr, flush=True)

    calibration = calibrate(loaded, examples, args.margin, progress=report)
    path = args.out or calibration_path(loaded.folder, calibration.identity)
    write_calibration(calibration, path)
    print(table(calibration))
    print(f"\n{calibration.prompts} prompts, margin {calibration.margin:g}; written to {path}")
    return 0


def calibrate(loaded: Any, examples: Iterable[Example], margin: float, progress: Callable[[int, Example], None] = lambda *_: None) -> Any:
    """Return the calibration of a loaded model from one vanilla prefill per example.

    Raises ValueError if the examples bring no image, no text, or something that cannot be read.
    """
    import torch

    from macs.model import apply, encode
    from macs.model.calibration import Calibration, model_identity

    pairs: dict[str, dict[int, np.ndarray]] = {"visual": {}, "text": {}}
    count = 0
    for count, example in enumerate(examples, 1):
        progress(count, example)
        batch = encode(loaded, example.prompt, example.picture())
        with torch.no_grad(), apply(loaded.model, "vanilla", inputs=batch) as recording:
            loaded.model(**batch, use_cache=False, logits_to_keep=1)
        _add_pairs(pairs, recording.trace)
    if count == 0:
        raise ValueError("The calibration set is empty; give it prompts with and without images.")
    calibration = Calibration(
        identity=model_identity(loaded.folder),
        margin=margin,
        prompts=count,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        visual_pairs={layer: tuple(map(int, n)) for layer, n in pairs["visual"].items()},
        text_pairs={layer: tuple(map(int, n)) for layer, n in pairs["text"].items()},
    )
    _ = calibration.groups  # raises here, not when it is read, if one modality is missing
    return calibration


def _add_pairs(pairs: dict[str, dict[int, np.ndarray]], trace: Trace) -> None:
    tokens = trace.tokens
    for layer in trace.layers:
        for kind, of_kind_T in (("visual", tokens.visual_T), ("text", ~tokens.visual_T)):
            expert_P = layer.expert_TK[of_kind_T & tokens.valid_T].ravel()
            counted_N = np.bincount(expert_P, minlength=layer.num_experts)
            pairs[kind][layer.layer] = pairs[kind].get(layer.layer, 0) + counted_N


def read_examples(source: Path) -> list[Example]:
    """Return the examples of a listing or a folder that has one; raises ValueError if there is none or a line is bad."""
    names = ("examples.jsonl", "examples.json") if source.is_dir() else (source.name,)
    folder = source if source.is_dir() else source.parent
    listing = next((folder / name for name in names if (folder / name).is_file()), None)
    if listing is None:
        raise ValueError(f"{source} holds no examples.json or examples.jsonl; name a folder or a listing that exists.")
    return list(_entries(listing))


def _entries(listing: Path) -> Iterator[Example]:
    text = listing.read_text(encoding="utf-8")
    try:
        entries = [json.loads(line) for line in text.splitlines() if line.strip()] if listing.suffix == ".jsonl" else json.loads(text)
        for entry in entries:
            yield Example(entry["prompt"], listing.parent / entry["file"] if entry.get("file") else None)
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{listing.name} is not a list of {{prompt, file}} entries ({type(error).__name__}); see README, 'Calibration'.") from None


def drawn_examples(count: int) -> Iterator[Example]:
    """Return ``count`` questions of the embedded model's world, drawn as they are asked for; raises ValueError below 1."""
    if count < 1:
        raise ValueError(f"scenes is {count}; use 1 or more.")
    return _draw(count)


def _draw(count: int) -> Iterator[Example]:
    """The families in turn, from seeds that no held-out question has."""
    from macs.demo.held_out import draw_question
    from macs.demo.packing import TRAINING
    from macs.demo.vocabulary import FAMILIES

    seed = TRAINING[0]
    for number in range(count):
        while (asked := draw_question(FAMILIES[number % len(FAMILIES)], seed)) is None:
            seed += 1  # this scene allows no question of the family
        question, image = asked
        yield Example(question.prompt, drawn=image)
        seed += 1


def table(calibration: Any) -> str:
    """Return how many experts of each layer serve which modality, as text."""
    lines = [f"{'layer':>5} {'visual':>6} {'text':>6} {'shared':>6}  m_j"]
    for layer, groups_N in calibration.groups.items():
        groups = groups_N.tolist()
        marks = "".join({1: "v", -1: "t", 0: "."}[m] for m in groups)
        lines.append(f"{layer:>5} {groups.count(1):>6} {groups.count(-1):>6} {groups.count(0):>6}  {marks}")
    return "\n".join(lines)
