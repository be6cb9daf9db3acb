"""Questions about the text in a scene: what it says, its letters, its numbers, its colour."""

import random
from collections import Counter

from .attribute_questions import PairQA
from .scenes import Scene
from .vocabulary import LETTERS


def _line_names(scene: Scene) -> list[tuple[str, int]]:
    """Phrases that name one line each, by place (top to bottom, where clear) or by colour."""
    lines = sorted(range(len(scene.lines)), key=lambda i: scene.lines[i].box[1])
    if len(lines) == 1:
        return [("the text", lines[0])]
    names = []
    gaps = [scene.lines[b].box[1] - scene.lines[a].box[1] for a, b in zip(lines, lines[1:])]
    if all(gap > 11 for gap in gaps):
        places = ("top", "bottom") if len(lines) == 2 else ("top", "middle", "bottom")
        names += [(f"the {place} line", i) for place, i in zip(places, lines)]
    colours = Counter(line.colour for line in scene.lines)
    names += [(f"the {line.colour} text", i) for i, line in enumerate(scene.lines) if colours[line.colour] == 1]
    return names


def ask_read(rng: random.Random, scene: Scene) -> PairQA:
    """What a line says."""
    names = _line_names(scene)
    if not names:
        return None
    name, i = rng.choice(names)
    forms = ("What does {} say?", "Read {}.", "What is written in {}?")
    return rng.choice(forms).format(name), scene.lines[i].text


def ask_end(rng: random.Random, scene: Scene) -> PairQA:
    """The first or last letter of a line, sometimes its successor in the alphabet."""
    names = [(n, i) for n, i in _line_names(scene) if scene.lines[i].text[0] in LETTERS]
    if not names:
        return None
    name, i = rng.choice(names)
    text, end = scene.lines[i].text, rng.choice(("first", "last"))
    letter = text[0] if end == "first" else text[-1]
    if letter != "Z" and rng.random() < 0.2:
        return f"Which letter comes after the {end} letter of {name}?", LETTERS[LETTERS.index(letter) + 1]
    return rng.choice(("What is the {} letter of {}?", "Which letter is {} in {}?")).format(end, name), letter


def ask_length(rng: random.Random, scene: Scene) -> PairQA:
    """How many letters a line has."""
    names = [(n, i) for n, i in _line_names(scene) if scene.lines[i].text[0] in LETTERS]
    if not names:
        return None
    name, i = rng.choice(names)
    return f"How many letters are in {name}?", str(len(scene.lines[i].text))


def ask_number(rng: random.Random, scene: Scene) -> PairQA:
    """The only number, or one more or less than it."""
    numbers = [line.text for line in scene.lines if line.text.isdigit()]
    if len(numbers) != 1:
        return None
    if len(numbers[0]) < 3 and rng.random() < 0.4:
        step = rng.choice((1, 1, 2))
        return f"What is the number plus {step}?", str(int(numbers[0]) + step)
    return rng.choice(("Which number is shown?", "What is the number?")), numbers[0]


def ask_text_colour(rng: random.Random, scene: Scene) -> PairQA:
    """The colour of a line named by what it says."""
    line = rng.choice(scene.lines) if scene.lines else None
    return (f"Which colour has the text {line.text}?", line.colour) if line else None
