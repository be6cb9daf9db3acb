"""``python -m macs families``: the README's table of model families, from the families' data."""

from __future__ import annotations

import argparse
from typing import Any

HEAD = ("family", "written for", "class", "router", "ranks", "overlay", "video frames", "calibration")
TESTED = (
    "Every family in the table is tested on a small random checkpoint written in its published layout and loaded by the code that loads a real one "
    "(`tests/test_families.py`): weights, pairs, masks, places of visual tokens, vanilla bit for bit, dropped pairs, two ranks; several pictures and frames in `tests/test_video.py`. "
    "None was tested with its published weights. A family that is not listed runs if it follows the common calls."
)
GRIDS = {"merged": "grid", "pooled": "grid", "tiled": "tiles and whole"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command has no flags."""


def main(args: argparse.Namespace) -> int:
    """Print the table."""
    print(table())
    return 0


def frames(family: Any) -> str:
    """Return whether a family's frames are shown, in words."""
    return "no: it takes none" if not family.video else f"yes; {family.video_but}" if family.video_but else "yes"


def table() -> str:
    """Return the table in Markdown, with what is not supported below it."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as CLASSES

    from macs.model.families import FAMILIES

    rows = [HEAD, ("---",) * len(HEAD)]
    for family in FAMILIES.values():
        if not family.unusable:
            overlay = GRIDS.get(family.grid, "no: learned queries")
            rows.append((family.title, family.published, f"`{CLASSES[family.name]}`", family.router, "yes", overlay, frames(family), "yes"))
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    refused = [f"{family.title} is refused: {family.unusable}" for family in FAMILIES.values() if family.unusable]
    return "\n".join([*lines, "", TESTED, *refused])
