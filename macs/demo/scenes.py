"""Draws the three kinds of scene: scattered things, signs with text, charts. One seed, one scene."""

import math
import random
from dataclasses import dataclass, field

import numpy as np
from PIL import Image

from . import charts
from .canvas import CELL, Canvas, Thing, cell_ids, dense_labels, finish, font, jitter, luma, new_canvas
from .canvas import shape_mask, sprite
from .vocabulary import COLOURS, DIGITS, FONTS_COUNT, LETTERS, OBJECT_NAMES, SHAPES, SIGN_WORDS

KINDS = ("things", "signs", "chart")
SMALL_GRIDS = ((8, 8), (8, 8), (7, 9), (9, 7), (6, 10), (10, 6), (6, 11), (11, 6), (6, 12), (12, 6))
FULL_GRIDS = (*SMALL_GRIDS[:5], (9, 9), (8, 11), (11, 8), (10, 10), (12, 9), (9, 12), (10, 11), (11, 11), (12, 12),
              (12, 12), (13, 10), (10, 13), (8, 16), (16, 8), (9, 15), (14, 10))  # fmt: skip


@dataclass(frozen=True)
class Line:
    """One line of text in a sign scene, its colour and its box in canonical pixels."""

    text: str
    colour: str
    box: tuple[float, float, float, float]


@dataclass
class Scene:
    """A picture and everything that is known about it; `cells` is [rows, columns], `labels` [5, rows, columns]."""

    kind: str
    image: Image.Image
    grid: tuple[int, int]
    things: list[Thing]
    cells: np.ndarray
    ids: Image.Image
    lines: list[Line] = field(default_factory=list)
    chart: "charts.Chart | None" = None

    @property
    def labels(self) -> np.ndarray:
        """Dense labels under each visual token: class, colour, number, row, column."""
        return dense_labels(self.cells, self.things)

    @property
    def object_mask(self) -> np.ndarray:
        """True where a visual token shows a thing, not background; shape [rows, columns]."""
        return self.cells > 0

    def mask_on(self, grid: tuple[int, int]) -> np.ndarray:
        """`object_mask` on another grid, such as the one that a processor gave the saved picture."""
        return cell_ids(self.ids, self.things, grid) > 0

    @property
    def items(self) -> list[Thing]:
        """The shapes and everyday objects among the things."""
        return [thing for thing in self.things if thing.kind in ("shape", "object")]


def draw_scene(seed: int, kind: str, size: str = "full", grid: tuple[int, int] | None = None) -> Scene:
    """The scene of `seed` and `kind`; size "small" has 60–72 visual tokens, "full" 60–144, or `grid` is given."""
    if kind not in KINDS:
        raise ValueError(f"scene kind {kind!r} is none of {', '.join(KINDS)}")
    rng = random.Random(f"{kind} {seed}")
    grid = grid or rng.choice(SMALL_GRIDS if size == "small" else FULL_GRIDS)
    unit = rng.uniform(1.0, 2.2) if size == "full" and grid[0] * grid[1] >= 120 and rng.random() < 0.6 else 1.0
    canvas = new_canvas(rng, grid, unit)
    lines, chart = [], None
    if kind == "things":
        scatter(canvas, crowd=rng.random() < 0.55)
    elif kind == "signs":
        lines = write_signs(canvas)
    else:
        chart = charts.draw_chart(canvas)
    cells = cell_ids(canvas.ids, canvas.things, grid)
    return Scene(kind, finish(canvas), grid, canvas.things, cells, canvas.ids, lines, chart)


def overlaps(box: tuple, others: list[tuple], gap: float) -> bool:
    """Whether the box comes nearer than `gap` to any other."""
    return any(
        box[0] - gap < o[2] and o[0] - gap < box[2] and box[1] - gap < o[3] and o[1] - gap < box[3] for o in others
    )


def place(canvas: Canvas, width: float, height: float, taken: list[tuple], tries: int = 40) -> tuple | None:
    """A free box of this size, or None when none was found."""
    if width + 2 > canvas.width or height + 2 > canvas.height:
        return None
    for _ in range(tries):
        x = canvas.rng.uniform(1, canvas.width - width - 1)
        y = canvas.rng.uniform(1, canvas.height - height - 1)
        box = (x, y, x + width, y + height)
        if not overlaps(box, taken, 2):
            return box
    return None


def draw_item(canvas: Canvas, name: str, colour: str, box: tuple) -> Thing:
    """A shape (with a thin outline where the ground is near its colour) or an everyday object."""
    rng = canvas.rng
    side = max(6, round((box[2] - box[0]) * canvas.unit))
    corner = (round(box[0] * canvas.unit), round(box[1] * canvas.unit))
    if name in SHAPES:
        mask = shape_mask(name, side, rng.uniform(-18, 18) if name in ("triangle", "star", "square") else 0)
        rgb = jitter(rng, colour)
        under = np.asarray(canvas.image.crop((*corner, corner[0] + side, corner[1] + side)), np.float32).mean((0, 1))
        if np.abs(under - np.array(rgb)).sum() < 170:
            edge = (245, 245, 245) if luma(rgb) < 110 else (30, 30, 30)
            wide = shape_mask(name, side + 4, 0) if name in ("circle", "ring") else mask.resize((side + 4, side + 4))
            canvas.image.paste(edge, (corner[0] - 2, corner[1] - 2, corner[0] + side + 2, corner[1] + side + 2), wide)
        return canvas.add(Thing("shape", name, colour, box), rgb, mask, corner)
    picture = sprite(name)
    if rng.random() < 0.3:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    picture = picture.resize((side, side), Image.Resampling.BILINEAR)
    if rng.random() < 0.3:
        picture = picture.rotate(rng.uniform(-15, 15), Image.Resampling.BILINEAR)
    return canvas.add(Thing("object", name, "none", box), picture, picture.getchannel("A"), corner)


def scatter(canvas: Canvas, crowd: bool, count: int | None = None, taken: list[tuple] | None = None) -> None:
    """One to eight shapes and everyday objects, a crowd of one kind among them when asked."""
    rng = canvas.rng
    taken = [] if taken is None else taken
    count = rng.choice((1, 2, 2, 3, 3, 4, 4, 5, 6, 7, 8)) if count is None else count
    biggest = min(canvas.width, canvas.height) * (0.62 if count == 1 else 0.42 if count < 4 else 0.3)
    favourite = rng.choice((*SHAPES, *OBJECT_NAMES[:8])) if crowd else None
    palette = rng.sample(list(COLOURS), rng.choice((2, 3, 5, 10)))
    for _ in range(count):
        if favourite and rng.random() < 0.6:
            name = favourite
        else:
            name = rng.choice(SHAPES) if rng.random() < 0.55 else rng.choice(OBJECT_NAMES)
        low = 17 if name in SHAPES else 20
        side = rng.uniform(low, max(low + 2, biggest))
        box = place(canvas, side, side, taken) or place(canvas, low, low, taken)
        if box is not None:
            taken.append(box)
            draw_item(canvas, name, rng.choice(palette) if name in SHAPES else "none", box)


def random_text(rng: random.Random, longest: int) -> str:
    """Random letters, a sign word or a number, of at most `longest` characters."""
    style = rng.random()
    if style < 0.2:
        return "".join(rng.choices(DIGITS[1:], k=1) + rng.choices(DIGITS, k=rng.randint(0, min(3, longest - 1))))
    if style < 0.45:
        return rng.choice([word for word in SIGN_WORDS if len(word) <= longest] or ["ZOO"])
    return "".join(rng.choices(LETTERS, k=rng.randint(min(2, longest), min(6, longest))))


def draw_text(canvas: Canvas, text: str, x: float, y: float, size: float, colour: str, face: int, wobble=0.0) -> tuple:
    """Write `text` letter by letter (each is a thing) with its top left at (x, y); returns its box."""
    rng, pixels = canvas.rng, max(7, round(size * canvas.unit))
    letters = font(face, pixels)
    rgb = jitter(rng, colour)
    left, top, right, bottom = x, y + size, x, y
    for place_in_line, letter in enumerate(text):
        mask, offset = letters.getmask2(letter, mode="L")
        glyph = Image.frombytes("L", mask.size, bytes(mask))
        shift = rng.uniform(-wobble, wobble)
        cx, cy = round(right * canvas.unit + offset[0]), round((y + shift) * canvas.unit + offset[1])
        box = (cx / canvas.unit, cy / canvas.unit, (cx + glyph.width) / canvas.unit, (cy + glyph.height) / canvas.unit)
        canvas.add(Thing("glyph", letter, colour, box, place_in_line), rgb, glyph, (cx, cy))
        top, bottom = min(top, box[1]), max(bottom, box[3])
        right += letters.getlength(letter) / canvas.unit + size * 0.06
    return left, top, right, bottom


def readable_colour(rng: random.Random, under: tuple, avoid: tuple = ()) -> str:
    """A text colour that stands out from the ground colour."""
    far = [
        name
        for name, rgb in COLOURS.items()
        if abs(luma(rgb) - luma(under)) > 75 and name not in avoid
    ]  # fmt: skip
    return rng.choice(far or ["black" if luma(under) > 120 else "white"])


def write_signs(canvas: Canvas) -> list[Line]:
    """One to three lines of text, some on a coloured plate, with shapes and objects between as clutter."""
    rng = canvas.rng
    taken: list[tuple] = []
    lines: list[Line] = []
    wanted = rng.choice((1, 1, 2, 2, 3))
    for _ in range(wanted):
        size = rng.uniform(15, 22 if wanted == 3 else 30)
        face = rng.randrange(FONTS_COUNT)
        text = random_text(rng, max(2, int((canvas.width - 8) / (size * 0.84))))
        width = font(face, max(7, round(size * canvas.unit))).getlength(text) / canvas.unit + size * 0.06 * len(text)
        box = place(canvas, width + 6, size * 1.25 + 4, taken)
        if box is None or any(line.text == text for line in lines):
            continue
        lines.append(_write_line(canvas, text, size, face, box, tuple(line.colour for line in lines)))
        taken.append(box)
    if rng.random() < 0.6:
        scatter(canvas, crowd=False, count=rng.randint(1, 3), taken=taken)
    return lines


def _write_line(canvas: Canvas, text: str, size: float, face: int, box: tuple, used: tuple) -> Line:
    rng, u = canvas.rng, canvas.unit
    pixels = tuple(round(value * u) for value in box)
    if rng.random() < 0.35:
        canvas.image.paste(jitter(rng, rng.choice(list(COLOURS)), 25), pixels)
    under = np.asarray(canvas.image.crop(pixels), np.float32).mean((0, 1))
    colour = readable_colour(rng, tuple(under), used if rng.random() < 0.8 else ())
    wobble = size * 0.06 if rng.random() < 0.3 else 0.0
    drawn = draw_text(canvas, text, box[0] + 3, box[1] + 1, size, colour, face, wobble)
    return Line(text, colour, drawn)


def grid_of(image_size: tuple[int, int], low: int = 60, high: int = 144) -> tuple[int, int]:
    """Visual tokens (rows, columns) that an image of (width, height) pixels gets within `low`..`high` cells."""
    rows, columns = max(1, round(image_size[1] / CELL)), max(1, round(image_size[0] / CELL))
    area = image_size[0] * image_size[1] / CELL**2
    if rows * columns > high:
        shrink = math.sqrt(area / high)
        return max(1, int(image_size[1] / shrink / CELL)), max(1, int(image_size[0] / shrink / CELL))
    if rows * columns < low:
        grow = math.sqrt(low / area)
        return math.ceil(image_size[1] * grow / CELL), math.ceil(image_size[0] * grow / CELL)
    return rows, columns
