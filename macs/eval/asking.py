"""What the studies share: the held-out questions, a model's answers to them, and tables with one JSON line at the end."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Iterator

from macs.demo.evaluate import answers, interval
from macs.demo.held_out import Asked, read_held_out
from macs.demo.vocabulary import FAMILIES
from macs.engine.base import DEMO_MODEL

__all__ = ["FAMILIES", "Asked", "add_model_flags", "answers", "held_out", "interval", "loaded_model", "prefills", "right_by_family"]


def add_model_flags(parser: argparse.ArgumentParser, limit: int | None) -> None:
    """Declare the flags that every study has."""
    parser.add_argument("--model", default=str(DEMO_MODEL), help="folder or hub id (default: the embedded model)")
    parser.add_argument("--limit", type=int, default=limit, help=f"questions per family (default: {limit or 'all'})")
    parser.add_argument("--json", type=Path, help="also write the last line to this file")


def held_out(limit: int | None) -> list[Asked]:
    """Return the first ``limit`` held-out questions of each family, family by family; raises ValueError below 1."""
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}; use 1 or more questions per family.")
    asked = read_held_out()
    return [a for family in FAMILIES for a in [b for b in asked if b.family == family][:limit]]


def loaded_model(name: str) -> tuple[Any, Any]:
    """Return (model with processor, its modality groups or None)."""
    from macs.model import load, read_calibration

    loaded = load(name)
    return loaded, read_calibration(loaded)


def right_by_family(loaded: Any, asked: list[Asked], batch: int) -> dict[str, list[bool]]:
    """Return for each family whether each greedy answer is exactly the wanted one."""
    right = {}
    for family in dict.fromkeys(a.family for a in asked):
        chosen = [a for a in asked if a.family == family]
        given = answers(loaded.model, loaded.processor, chosen, batch)
        right[family] = [text == a.answer for text, a in zip(given, chosen, strict=True)]
    return right


def prefills(loaded: Any, calibration: Any, asked: list[Asked]) -> Iterator[tuple[Asked, Any]]:
    """Yield each question with the trace of its prefill as the router wants it, one question at a time."""
    import torch

    from macs.model import apply, encode

    for question in asked:
        batch = encode(loaded, question.prompt, question.image)
        with torch.no_grad(), apply(loaded.model, "vanilla", modality=calibration, inputs=batch) as recording:
            loaded.model(**batch, use_cache=False, logits_to_keep=1)
        yield question, recording.trace


def finish(result: dict[str, Any], path: Path | None) -> int:
    """Print ``result`` as the last line, write it to ``path`` if there is one, and return 0."""
    import json

    line = json.dumps(result)
    print(line)
    if path is not None:
        path.write_text(line + "\n")
    return 0
