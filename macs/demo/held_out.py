"""The held-out questions: 200 per family, drawn once from seeds that training never sees, kept as one small file."""

import hashlib
import io
import json
import random
import zipfile
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from .packing import HELD_OUT
from .questions import KIND_OF_FAMILY, Question, ask_scene, ask_without_image
from .scenes import draw_scene
from .vocabulary import ASSETS, FAMILIES

PER_FAMILY = 200
FILE = ASSETS / "held_out.zip"
QUALITY = 78


@dataclass(frozen=True)
class Asked:
    """One held-out question with its picture (None for the family "text") and the seed it was drawn from."""

    family: str
    prompt: str
    answer: str
    image: Image.Image | None
    seed: int


def draw_question(family: str, seed: int) -> tuple[Question, Image.Image | None] | None:
    """The question of this family that `seed` gives, with its picture; None when the scene allows none."""
    rng = random.Random(f"held out {family} {seed}")
    if family == "text":
        return ask_without_image(rng, 1)[0], None
    scene = draw_scene(seed, KIND_OF_FAMILY[family], "full")
    found = ask_scene(rng, scene, 1, family)
    return (found[0], scene.image) if found else None


def write_held_out(path: Path = FILE, per_family: int = PER_FAMILY) -> None:
    """Draw the split and write it with a checksum beside it."""
    lines = []
    with zipfile.ZipFile(path, "w") as archive:
        for number, family in enumerate(FAMILIES):
            seed, kept = HELD_OUT[0] + number * 10_000, 0
            while kept < per_family:
                drawn = draw_question(family, seed)
                if drawn is not None:
                    question, image = drawn
                    name = None if image is None else f"{family}_{kept:03d}.jpg"
                    if image is not None:
                        buffer = io.BytesIO()
                        image.save(buffer, "JPEG", quality=QUALITY)
                        archive.writestr(zipfile.ZipInfo(name), buffer.getvalue())
                    lines.append({"family": family, "prompt": question.prompt, "answer": question.answer,
                                  "image": name, "seed": seed})  # fmt: skip
                    kept += 1
                seed += 1
        text = "".join(json.dumps(line) + "\n" for line in lines)
        archive.writestr(zipfile.ZipInfo("questions.jsonl"), text, zipfile.ZIP_DEFLATED)
    path.with_suffix(".sha256").write_text(f"{checksum(path)}  {path.name}\n")


def checksum(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_held_out(path: Path = FILE) -> list[Asked]:
    """The held-out questions; ValueError when the file differs from its checksum."""
    wanted = path.with_suffix(".sha256").read_text().split()[0]
    if checksum(path) != wanted:
        raise ValueError(f"{path.name} does not match its checksum; restore it, or write it anew with 'demo scenes'")
    with zipfile.ZipFile(path) as archive:
        rows = [json.loads(line) for line in archive.read("questions.jsonl").splitlines()]
        return [
            Asked(row["family"], row["prompt"], row["answer"],
                  Image.open(io.BytesIO(archive.read(row["image"]))).convert("RGB") if row["image"] else None, row["seed"])
            for row in rows
        ]  # fmt: skip
