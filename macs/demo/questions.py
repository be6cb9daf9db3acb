"""Questions about a drawn scene, with their answers, by family. Charts and text-only questions have their own files."""

import random
from collections import Counter
from dataclasses import dataclass

from .canvas import Thing
from .chart_questions import CHART_QUESTIONS
from .scenes import Scene
from .text_questions import ask_text
from .vocabulary import (
    CATEGORY_OF,
    COLOURS,
    CORNERS,
    HOME,
    LETTERS,
    MADE_FOR,
    MIX,
    OBJECT_NAMES,
    OBJECTS,
    SHAPES,
    SOUND,
    article,
    plural,
)

PairQA = tuple[str, str] | None


@dataclass(frozen=True)
class Question:
    """One question, its only right answer, and the family it counts for."""

    family: str
    prompt: str
    answer: str


def noun(rng: random.Random, thing: Thing, things: list[Thing]) -> str | None:
    """A phrase that names this thing and no other of the scene, or None."""
    same = [t for t in things if t.name == thing.name]
    if len(same) == 1 and (thing.kind == "object" or rng.random() < 0.6):
        return thing.name
    if thing.kind == "shape" and sum(t.colour == thing.colour for t in same) == 1:
        return f"{thing.colour} {thing.name}"
    return None


def full_name(thing: Thing) -> str:
    """Colour and shape, or the object's name."""
    return f"{thing.colour} {thing.name}" if thing.kind == "shape" else thing.name


def _only(things: list[Thing], kind: str) -> Thing | None:
    found = [t for t in things if t.kind == kind]
    return found[0] if len(found) == 1 else None


# attributes


def ask_colour(rng: random.Random, scene: Scene) -> PairQA:
    """The colour of the only shape of its name."""
    shapes = [t for t in scene.items if t.kind == "shape" and sum(o.name == t.name for o in scene.items) == 1]
    if not shapes:
        return None
    thing = rng.choice(shapes)
    form = rng.choice(("What colour is the {}?", "Which colour does the {} have?", "Tell me the colour of the {}."))
    return form.format(thing.name), thing.colour


def ask_shape(rng: random.Random, scene: Scene) -> PairQA:
    """The name of the only shape of its colour."""
    shapes = [t for t in scene.items if t.kind == "shape"]
    shapes = [t for t in shapes if sum(o.colour == t.colour for o in shapes) == 1]
    if not shapes:
        return None
    thing = rng.choice(shapes)
    form = rng.choice(("What shape is {}?", "Which shape is {}?", "Name the {} shape."))
    return form.format(thing.colour), thing.name


def ask_object(rng: random.Random, scene: Scene) -> PairQA:
    """The only everyday object, or the only one of its category."""
    objects = [t for t in scene.items if t.kind == "object"]
    single = _only(scene.items, "object")
    if single and rng.random() < 0.3:
        return rng.choice(("Which object is shown?", "What object do you see?")), single.name
    groups = Counter(CATEGORY_OF[t.name] for t in objects)
    unique = [t for t in objects if groups[CATEGORY_OF[t.name]] == 1 and CATEGORY_OF[t.name] != "thing"]
    if not unique:
        return None
    thing = rng.choice(unique)
    form = rng.choice(("Which {} is shown?", "What {} do you see?", "Name the {}."))
    return form.format(CATEGORY_OF[thing.name]), thing.name


def ask_fact(rng: random.Random, scene: Scene) -> PairQA:
    """Something that is known about the only animal, vehicle or object, but not shown."""
    objects = [t for t in scene.items if t.kind == "object"]
    if len(objects) == 1 and rng.random() < 0.35:
        form = rng.choice(("What kind of thing is the object?", "To which group does the object belong?"))
        return form, CATEGORY_OF[objects[0].name]
    animals = [t for t in objects if CATEGORY_OF[t.name] == "animal"]
    vehicles = [t for t in objects if CATEGORY_OF[t.name] == "vehicle"]
    if len(animals) == 1:
        name = animals[0].name
        if name in SOUND and rng.random() < 0.5:
            return rng.choice(("What does the animal say?", "Which sound does the animal make?")), SOUND[name]
        return rng.choice(("Where does the animal live?", "What is the home of the animal?")), HOME[name]
    if len(vehicles) == 1:
        return rng.choice(("Where does the vehicle move?", "What is the vehicle made for?")), MADE_FOR[vehicles[0].name]
    return None


def ask_mix(rng: random.Random, scene: Scene) -> PairQA:
    """The mixture of the colours of two shapes."""
    shapes = [t for t in scene.items if t.kind == "shape" and sum(o.name == t.name for o in scene.items) == 1]
    pairs = [(a, b) for a in shapes for b in shapes if frozenset((a.colour, b.colour)) in MIX]
    if not pairs:
        return None
    a, b = rng.choice(pairs)
    return f"Which colour do the {a.name} and the {b.name} mix to?", MIX[frozenset((a.colour, b.colour))]


def ask_corners(rng: random.Random, scene: Scene) -> PairQA:
    """How many corners the only shape of its colour has."""
    shapes = [t for t in scene.items if t.kind == "shape"]
    shapes = [t for t in shapes if t.name in CORNERS and sum(o.colour == t.colour for o in shapes) == 1]
    if not shapes:
        return None
    thing = rng.choice(shapes)
    return f"How many corners does the {thing.colour} shape have?", str(CORNERS[thing.name])


def ask_biggest(rng: random.Random, scene: Scene) -> PairQA:
    """The biggest or smallest thing where it is clearly so; the only thing in full."""
    things = sorted(scene.items, key=lambda t: t.box[2] - t.box[0])
    if len(things) == 1:
        form = rng.choice(("What is shown?", "What do you see?", "Describe the picture."))
        return form, article(full_name(things[0]))
    sides = [t.box[2] - t.box[0] for t in things]
    options = []
    if len(things) > 1 and sides[-1] > 1.3 * sides[-2]:
        options.append(("biggest", things[-1]))
    if len(things) > 1 and sides[0] * 1.3 < sides[1]:
        options.append(("smallest", things[0]))
    if not options:
        return None
    word, thing = rng.choice(options)
    return rng.choice(("What is the {} thing?", "Which thing is {}?")).format(word), full_name(thing)


# presence


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


# counting and position


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


# reading


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


ASK = {
    "things": (
        (1.0, "attributes", ask_colour), (1.0, "attributes", ask_shape), (1.2, "attributes", ask_object),
        (1.0, "attributes", ask_fact), (0.5, "attributes", ask_mix), (0.4, "attributes", ask_corners),
        (0.8, "attributes", ask_biggest), (1.8, "presence", ask_is_there), (0.4, "presence", ask_more),
        (2.2, "counting", ask_count), (0.4, "counting", ask_sum_count), (1.2, "counting", ask_where),
        (1.2, "counting", ask_side), (0.8, "counting", ask_extreme),
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
