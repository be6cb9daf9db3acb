"""Pictures for people: the page's six examples, and samples of the training scenes."""

import json
import random
from pathlib import Path

from .held_out import draw_question
from .packing import HELD_OUT
from .questions import ask_scene
from .scenes import KINDS, draw_scene
from .vocabulary import FAMILIES

SIDE = 224  # the longer examples' sides are scaled so that the picture has about this many pixels squared
FIRST_SEED = HELD_OUT[0] + 90_000


def write_examples(folder: Path, seeds: dict[str, int] | None = None) -> None:
    """One picture and prompt per family, from held-out seeds beyond those of the held-out questions."""
    rows = []
    for number, family in enumerate(FAMILIES):
        seed = (seeds or {}).get(family, FIRST_SEED + number * 1000)
        while (drawn := draw_question(family, seed)) is None or (
            drawn[1] is not None and drawn[1].width * drawn[1].height < 150**2
        ):
            seed += 1
        question, image = drawn
        if image is None:  # a question without an image is shown beside a scene that does not help
            image = draw_scene(seed, "things", "full").image
        scale = (SIDE * SIDE / (image.width * image.height)) ** 0.5
        image = image.resize((round(image.width * scale), round(image.height * scale)))
        image.save(folder / f"{family}.png", optimize=True)
        rows.append({"file": f"{family}.png", "prompt": question.prompt, "family": family, "answer": question.answer,
                     "seed": seed})  # fmt: skip
    listing = folder / "examples.json"
    others = json.loads(listing.read_text()) if listing.exists() else []
    rows += [row for row in others if row["family"] not in FAMILIES]  # photographs stay
    listing.write_text(json.dumps(rows, indent=2) + "\n")


def write_samples(folder: Path, first_seed: int, count: int) -> None:
    """Scenes of every kind with all that is asked about them, for looking at."""
    with (folder / "questions.jsonl").open("w") as file:
        for seed in range(first_seed, first_seed + count):
            for kind in KINDS:
                scene = draw_scene(seed, kind)
                name = f"{kind}_{seed}.png"
                scene.image.save(folder / name)
                asked = ask_scene(random.Random(seed), scene, 10)
                facts = {"image": name, "questions": [[q.family, q.prompt, q.answer] for q in asked]}
                file.write(json.dumps(facts) + "\n")
