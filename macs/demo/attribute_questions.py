"""Questions about what the things in a scene are: colour, shape, kind, and what is known about them."""

import random
from collections import Counter

from .canvas import Thing
from .scenes import Scene
from .vocabulary import CATEGORY_OF, CORNERS, HOME, MADE_FOR, MIX, SOUND, article

PairQA = tuple[str, str] | None


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
