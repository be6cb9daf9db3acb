"""Recorded examples: a picture, a prompt, and the four traces that the embedded model left for them."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageOps

from macs.engine.compare import NAMES, Comparison, load_comparison

THUMBNAIL = 72  # pixels a side, twice what the page shows


@dataclass(frozen=True)
class Example:
    """One recorded example; its traces are read when they are asked for."""

    name: str
    folder: Path  # of the four traces
    prompt: str
    picture: Path | None  # the file as it was given to the model

    def load(self) -> Comparison:
        """Return the recorded run; raises ValueError if a trace is missing or damaged."""
        return load_comparison(self.folder)

    def thumbnail(self) -> bytes:
        """Return the picture as a small square PNG."""
        assert self.picture is not None
        with Image.open(self.picture) as opened:
            small = ImageOps.fit(ImageOps.exif_transpose(opened).convert("RGB"), (THUMBNAIL, THUMBNAIL))
        buffer = io.BytesIO()
        small.save(buffer, "PNG")
        return buffer.getvalue()


def find_examples(folder: Path) -> tuple[Example, ...]:
    """Return the recorded examples that ``folder``/examples.json lists; raises ValueError if none is there."""
    listing = folder / "examples.json"
    entries = json.loads(listing.read_text(encoding="utf-8")) if listing.is_file() else []
    found = []
    for entry in entries:
        picture = folder / entry["file"] if entry.get("file") else None
        name = picture.stem if picture else entry["family"]
        if all((folder / name / f"{trace}.npz").is_file() for trace in NAMES):
            found.append(Example(name, folder / name, entry["prompt"], picture))
    if not found:
        raise ValueError(f"{folder} holds no recorded example; run: python -m macs record --examples {folder}")
    return tuple(found)
