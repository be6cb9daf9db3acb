"""Which questions belong to which family and scene, and how they are drawn."""

import random
from dataclasses import dataclass

from .attribute_questions import ask_biggest, ask_colour, ask_corners, ask_fact, ask_mix, ask_object, ask_shape
from .chart_questions import CHART_QUESTIONS
from .count_questions import (
    ask_count,
    ask_extreme,
    ask_is_there,
    ask_letter_there,
    ask_more,
    ask_side,
    ask_sum_count,
    ask_where,
)
from .reading_questions import ask_end, ask_length, ask_number, ask_read, ask_text_colour
from .scenes import Scene
from .text_questions import ask_text


@dataclass(frozen=True)
class Question:
    """One question, its only right answer, and the family it counts for."""

    family: str
    prompt: str
    answer: str


ASK = {
    "things": (
        (1.0, "attributes", ask_colour), (1.0, "attributes", ask_shape), (1.2, "attributes", ask_object),
        (1.0, "attributes", ask_fact), (0.5, "attributes", ask_mix), (0.4, "attributes", ask_corners),
        (0.8, "attributes", ask_biggest), (2.7, "presence", ask_is_there), (0.6, "presence", ask_more),
        (4.4, "counting", ask_count), (0.8, "counting", ask_sum_count), (2.4, "counting", ask_where),
        (2.4, "counting", ask_side), (1.6, "counting", ask_extreme),
    ),
    "signs": (
        (4.0, "reading", ask_read), (1.2, "reading", ask_end), (0.6, "reading", ask_length),
        (0.8, "reading", ask_number), (0.5, "reading", ask_text_colour), (0.6, "presence", ask_letter_there),
        (0.3, "presence", ask_is_there), (0.3, "attributes", ask_object), (0.2, "attributes", ask_colour),
    ),
    "chart": tuple((weight, family, function) for weight, family, function in CHART_QUESTIONS),
}  # fmt: skip
KIND_OF_FAMILY = {"reading": "signs", "charts": "chart", "attributes": "things", "presence": "things",
                  "counting": "things"}  # fmt: skip


def ask_scene(rng: random.Random, scene: Scene, count: int, family: str | None = None) -> list[Question]:
    """Up to `count` different questions about the scene, of one family when it is given."""
    table = [row for row in ASK[scene.kind] if family in (None, row[1])]
    weights = [row[0] for row in table]
    found: dict[str, Question] = {}
    for _ in range(4 * count):
        _, of_family, ask = rng.choices(table, weights)[0]
        pair = ask(rng, scene)
        if pair is not None:
            found.setdefault(pair[0], Question(of_family, *pair))
        if len(found) == count:
            break
    return list(found.values())


def ask_without_image(rng: random.Random, count: int) -> list[Question]:
    """`count` different questions of the family "text"."""
    found: dict[str, Question] = {}
    while len(found) < count:
        prompt, answer = ask_text(rng)
        found.setdefault(prompt, Question("text", prompt, answer))
    return list(found.values())
