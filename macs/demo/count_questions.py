"""Questions about how many things there are, where they lie, and whether they are there at all."""

import random
from collections import Counter

from .attribute_questions import PairQA, full_name, noun
from .canvas import Thing
from .scenes import Scene
from .vocabulary import CATEGORY_OF, COLOURS, LETTERS, OBJECT_NAMES, OBJECTS, SHAPES, article, plural


def _balanced(rng: random.Random, present: list[str], absent: list[str], forms: tuple[str, ...]) -> PairQA:
    if rng.random() < 0.5:
        return (rng.choice(forms).format(rng.choice(present)), "yes") if present else None
    return (rng.choice(forms).format(rng.choice(absent)), "no") if absent else None


def ask_is_there(rng: random.Random, scene: Scene) -> PairQA:
    """Whether a coloured shape, a shape, an object or a category is shown; absent ones mix what is there."""
    forms = ("Is there {}?", "Do you see {}?", "Does the picture show {}?")
    items = scene.items
    shapes = [t for t in items if t.kind == "shape"]
    style = rng.random()
    if style < 0.4 and shapes:
        present = {full_name(t) for t in shapes}
        near = {f"{a.colour} {b.name}" for a in shapes for b in shapes} - present
        far = {f"{rng.choice(list(COLOURS))} {rng.choice(shapes).name}" for _ in range(2)} - present
        far |= {f"{rng.choice(shapes).colour} {rng.choice(SHAPES)}" for _ in range(2)} - present
        absent = sorted(near) if near and rng.random() < 0.5 else sorted(far)
    elif style < 0.55:
        present = {t.name for t in shapes}
        absent = sorted(set(SHAPES) - present)
    elif style < 0.8:
        present = {t.name for t in items if t.kind == "object"}
        absent = sorted(set(OBJECT_NAMES) - present)
    else:
        present = {CATEGORY_OF[t.name] for t in items if t.kind == "object"} - {"thing", "food"}
        absent = sorted(set(OBJECTS) - present - {"thing", "food"})
    return _balanced(rng, [article(n) for n in sorted(present)], [article(n) for n in absent], forms)


def ask_more(rng: random.Random, scene: Scene) -> PairQA:
    """Whether there are more of one thing than of another."""
    counts = Counter(t.name for t in scene.items)
    if len(counts) < 2:
        return None
    a, b = rng.sample(sorted(counts), 2)
    if counts[a] == counts[b] and rng.random() < 0.6:
        return None
    return f"Are there more {plural(a)} than {plural(b)}?", "yes" if counts[a] > counts[b] else "no"


def ask_letter_there(rng: random.Random, scene: Scene) -> PairQA:
    """Whether a letter is written in the picture."""
    letters = {c for line in scene.lines for c in line.text if c in LETTERS}
    absent = [c for c in LETTERS if c not in letters]
    return _balanced(rng, sorted(letters), absent, ("Is there the letter {}?", "Do you see the letter {}?"))


def ask_count(rng: random.Random, scene: Scene) -> PairQA:
    """How many things of a name, colour, category or kind there are; sometimes none."""
    items, style = scene.items, rng.random()
    forms = ("How many {} are there?", "How many {} do you see?", "Count the {}.")
    if style < 0.45:
        name = rng.choice(items).name if items and rng.random() < 0.9 else rng.choice((*SHAPES, *OBJECT_NAMES))
        what, number = plural(name), sum(t.name == name for t in items)
    elif style < 0.62:
        shapes = [t for t in items if t.kind == "shape"]
        colour = rng.choice(shapes).colour if shapes and rng.random() < 0.9 else rng.choice(list(COLOURS))
        what, number = f"{colour} shapes", sum(t.colour == colour for t in shapes)
    elif style < 0.75:
        category = rng.choice(("animal", "vehicle", "plant"))
        what = plural(category)
        number = sum(t.kind == "object" and CATEGORY_OF[t.name] == category for t in items)
    elif style < 0.85:
        what, number = "shapes", sum(t.kind == "shape" for t in items)
    else:
        what, number = "things", len(items)
    if number < 2 and rng.random() < 0.5:
        return None
    return rng.choice(forms).format(what), str(number)


def ask_sum_count(rng: random.Random, scene: Scene) -> PairQA:
    """How many of two names there are together."""
    names = sorted({t.name for t in scene.items})
    if len(names) < 2:
        return None
    a, b = rng.sample(names, 2)
    return f"How many {plural(a)} and {plural(b)} are there in all?", str(sum(t.name in (a, b) for t in scene.items))


def region(scene: Scene, thing: Thing) -> str | None:
    """Where in a 3 x 3 division of the picture the thing's middle lies; None near a border of two parts."""
    x, y = (c / (16 * n) for c, n in zip(thing.centre, (scene.grid[1], scene.grid[0])))
    if any(abs(v - b) < 0.04 for v in (x, y) for b in (1 / 3, 2 / 3)):
        return None
    row, column = ("top", "", "bottom")[int(y * 3)], ("left", "", "right")[int(x * 3)]
    return f"{row} {column}".strip() or "middle"


def ask_where(rng: random.Random, scene: Scene) -> PairQA:
    """The part of the picture in which a thing lies."""
    options = [(noun(rng, t, scene.items), region(scene, t)) for t in scene.items]
    options = [(n, r) for n, r in options if n and r]
    if not options:
        return None
    name, where = rng.choice(options)
    return rng.choice(("Where is the {}?", "In which part is the {}?")).format(name), where


def ask_side(rng: random.Random, scene: Scene) -> PairQA:
    """On which side of another thing a thing lies."""
    named = [(n, t) for t in scene.items if (n := noun(rng, t, scene.items))]
    if len(named) < 2:
        return None
    (name_a, a), (name_b, b) = rng.sample(named, 2)
    dx, dy = a.centre[0] - b.centre[0], a.centre[1] - b.centre[1]
    if rng.random() < 0.5 and abs(dx) > 12:
        return f"Is the {name_a} left or right of the {name_b}?", "left" if dx < 0 else "right"
    if abs(dy) > 12:
        return f"Is the {name_a} above or below the {name_b}?", "above" if dy < 0 else "below"
    return None


def ask_extreme(rng: random.Random, scene: Scene) -> PairQA:
    """The thing furthest to one side where it is clearly so."""
    if len(scene.items) < 2:
        return None
    word, axis, sign = rng.choice((("left", 0, 1), ("right", 0, -1), ("top", 1, 1), ("bottom", 1, -1)))
    ordered = sorted(scene.items, key=lambda t: sign * t.centre[axis])
    if abs(ordered[0].centre[axis] - ordered[1].centre[axis]) < 12:
        return None
    form = rng.choice(("Which thing is furthest to the {}?", "What is nearest to the {} edge?"))
    return form.format(word), full_name(ordered[0])
