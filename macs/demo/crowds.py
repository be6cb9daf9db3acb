"""Crowded scenes for the vision tower's own lessons: rows full of text, shapes and objects, each cell labelled.

They hold about ten times as many labelled things as the scenes that questions are asked about.
"""

import random

import numpy as np

from .canvas import cell_ids, finish, font, new_canvas
from .scenes import Scene, draw_item, draw_text, random_text, readable_colour
from .vocabulary import COLOURS, FONTS_COUNT, OBJECT_NAMES, SHAPES


def draw_crowd(seed: int, grid: tuple[int, int]) -> Scene:
    """A scene of kind "crowd" that fills the whole grid."""
    rng = random.Random(f"crowd {seed}")
    canvas = new_canvas(rng, grid)
    ground = tuple(np.asarray(canvas.image.resize((1, 1)))[0, 0])
    y = rng.uniform(0, 8)
    while True:
        height = rng.uniform(16, 32)
        if y + height > canvas.height - 1:
            break
        x = rng.uniform(1, 10)
        while True:
            wide = _draw_next(canvas, rng, ground, x, y, height)
            if wide is None:
                break
            x += wide + rng.uniform(2, 9)
        y += height + rng.uniform(1, 5)
    cells = cell_ids(canvas.ids, canvas.things, grid)
    return Scene("crowd", finish(canvas), grid, canvas.things, cells, canvas.ids)


def _draw_next(canvas, rng: random.Random, ground: tuple, x: float, y: float, height: float) -> float | None:
    """One more piece of text, shape or object in the row at (x, y); its width, or None when it does not fit."""
    side = height * rng.uniform(0.8, 1.0)
    if rng.random() < 0.65:
        size, face = side * 0.84, rng.randrange(FONTS_COUNT)
        text = random_text(rng, 6)
        pixels = max(7, round(size))
        width = font(face, pixels).getlength(text) + size * 0.06 * len(text)
        if x + width > canvas.width - 1:
            return None
        under = ground
        if rng.random() < 0.35:
            plate = COLOURS[rng.choice(list(COLOURS))]
            canvas.image.paste(plate, (round(x) - 1, round(y), round(x + width) + 1, round(y + height)))
            under = plate
        colour = readable_colour(rng, under)
        draw_text(canvas, text, x, y, size, colour, face, size * 0.05 if rng.random() < 0.3 else 0.0)
        return width
    if x + side > canvas.width - 1:
        return None
    name = rng.choice(SHAPES) if rng.random() < 0.5 else rng.choice(OBJECT_NAMES)
    colour = rng.choice(list(COLOURS)) if name in SHAPES else "none"
    draw_item(canvas, name, colour, (x, y, x + side, y + side))
    return side
