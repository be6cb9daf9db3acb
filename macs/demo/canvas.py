"""A drawing surface that remembers what lies under every pixel.

Everything drawn is a Thing; `ids_HW` holds, per pixel, 1 + the index of the topmost thing, 0 for background.
Lengths are given in canonical pixels (the size at which the model sees the image) and multiplied by `unit`.
"""

import io
import math
import random
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from .vocabulary import ASSETS, CLASS_ID, COLOUR_ID, COLOURS, MIDDLE, OBJECT_NAMES

CELL = 16  # canonical pixels under one visual token: patch 8, merged 2 x 2
FONTS = ("DejaVuSans-Bold.ttf", "DejaVuSerif-Bold.ttf", "DejaVuSansMono-Bold.ttf", None)
SPRITE = 72
SPRITE_COLUMNS = 8


@dataclass(frozen=True)
class Thing:
    """One drawn thing: a shape, an object, a letter, a bar; `number` is the value of a bar or a letter's place."""

    kind: str
    name: str
    colour: str
    box: tuple[float, float, float, float]
    number: int | None = None
    size: str = ""

    @property
    def centre(self) -> tuple[float, float]:
        """Middle of the box (x, y) in canonical pixels."""
        return (self.box[0] + self.box[2]) / 2, (self.box[1] + self.box[3]) / 2


@dataclass
class Canvas:
    """An image under construction with its id map and its list of things."""

    width: float
    height: float
    unit: float
    image: Image.Image
    ids: Image.Image
    rng: random.Random
    things: list[Thing] = field(default_factory=list)

    def px(self, *values: float) -> list[float]:
        """Canonical lengths in pixels of this canvas."""
        return [value * self.unit for value in values]

    def add(self, thing: Thing, colour: tuple, mask: Image.Image, corner: tuple[int, int]) -> Thing:
        """Paint `colour` (RGB) or a sprite through `mask` at `corner` and note the thing."""
        self.things.append(thing)
        if isinstance(colour, Image.Image):
            self.image.paste(colour, corner, mask)
        else:
            self.image.paste(colour, (*corner, corner[0] + mask.width, corner[1] + mask.height), mask)
        self.ids.paste(len(self.things), (*corner, corner[0] + mask.width, corner[1] + mask.height), _solid(mask))
        return thing


@lru_cache(maxsize=256)
def font(index: int, size: int) -> ImageFont.FreeTypeFont:
    """One of the shipped fonts (the last is Pillow's own) at `size` pixels."""
    name = FONTS[index]
    return ImageFont.load_default(size) if name is None else ImageFont.truetype(ASSETS / "fonts" / name, size)


@lru_cache(maxsize=1)
def _sheet() -> Image.Image:
    return Image.open(ASSETS / "objects.png").convert("RGBA")


@lru_cache(maxsize=64)
def sprite(name: str) -> Image.Image:
    """The RGBA picture of an everyday object."""
    row, column = divmod(OBJECT_NAMES.index(name), SPRITE_COLUMNS)
    return _sheet().crop((column * SPRITE, row * SPRITE, (column + 1) * SPRITE, (row + 1) * SPRITE))


def _solid(mask: Image.Image) -> Image.Image:
    return mask.point(lambda alpha: 255 if alpha > 110 else 0)


def jitter(rng: random.Random, colour: str, amount: int = 14) -> tuple[int, int, int]:
    """The named colour, moved a little."""
    return tuple(max(0, min(255, c + rng.randint(-amount, amount))) for c in COLOURS[colour])


def luma(rgb: tuple) -> float:
    """Perceived brightness, 0 to 255."""
    return 0.3 * rgb[0] + 0.59 * rgb[1] + 0.11 * rgb[2]


def background(rng: random.Random, width: int, height: int) -> Image.Image:
    """A plain, gradient, striped, chequered, blotchy or grainy ground of low saturation."""
    dark = rng.random() < 0.25
    base = rng.randint(45, 80) if dark else rng.randint(165, 235)
    first = np.array([base + rng.randint(-18, 18) for _ in range(3)], np.float32)
    second = np.clip(first + np.array([rng.randint(-32, 32) for _ in range(3)], np.float32), 25, 245)
    style = rng.choice(("plain", "plain", "gradient", "stripes", "checks", "blotches", "grain"))
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    angle, period = rng.uniform(0, math.pi), rng.uniform(0.08, 0.3) * max(width, height)
    along = x * math.cos(angle) + y * math.sin(angle)
    if style == "gradient":
        mix = (along - along.min()) / max(float(np.ptp(along)), 1)
    elif style == "stripes":
        mix = 0.35 * ((along / period) % 1 > 0.5)
    elif style == "checks":
        mix = 0.3 * (((x // period).astype(int) + (y // period).astype(int)) % 2)
    elif style == "blotches":
        noise = np.random.default_rng(rng.getrandbits(32)).random((5, 5)).astype(np.float32)
        small = Image.fromarray((noise * 255).astype(np.uint8))
        mix = np.asarray(small.resize((width, height), Image.Resampling.BICUBIC), np.float32) / 255
    else:
        mix = np.zeros((height, width), np.float32)
    picture = first + np.asarray(mix, np.float32)[..., None] * (second - first)
    if style == "grain":
        picture = picture + np.random.default_rng(rng.getrandbits(32)).normal(0, 9, picture.shape)
    return Image.fromarray(np.clip(picture, 0, 255).astype(np.uint8))


def new_canvas(rng: random.Random, grid: tuple[int, int], unit: float = 1.0) -> Canvas:
    """An empty scene of `grid` = (rows, columns) visual tokens, drawn at `unit` pixels per canonical pixel."""
    width, height = grid[1] * CELL, grid[0] * CELL
    size = (round(width * unit), round(height * unit))
    return Canvas(width, height, unit, background(rng, *size), Image.new("L", size, 0), rng)


def shape_mask(name: str, side: int, angle: float = 0.0) -> Image.Image:
    """An antialiased mask (L, side x side) of one of the drawn shapes."""
    big = side * 3
    mask = Image.new("L", (big, big), 0)
    draw = ImageDraw.Draw(mask)
    mid, radius = big / 2, big / 2 - 2
    turn = math.radians(angle)

    def ring_points(count: int, radii: tuple[float, ...], start: float) -> list[tuple[float, float]]:
        step = 2 * math.pi / count
        return [
            (mid + radii[i % len(radii)] * math.sin(start + i * step), mid - radii[i % len(radii)] * math.cos(start + i * step))
            for i in range(count)
        ]  # fmt: skip

    if name == "circle":
        draw.ellipse((mid - radius, mid - radius, mid + radius, mid + radius), fill=255)
    elif name == "ring":
        draw.ellipse((mid - radius, mid - radius, mid + radius, mid + radius), fill=255)
        hole = radius * 0.52
        draw.ellipse((mid - hole, mid - hole, mid + hole, mid + hole), fill=0)
    elif name == "square":
        draw.polygon(ring_points(4, (radius * 1.2,), math.pi / 4 + turn / 3), fill=255)
    elif name == "diamond":
        draw.polygon([(mid, 2), (mid + radius * 0.68, mid), (mid, big - 2), (mid - radius * 0.68, mid)], fill=255)
    elif name == "triangle":
        draw.polygon(ring_points(3, (radius,), turn), fill=255)
    elif name == "star":
        draw.polygon(ring_points(10, (radius, radius * 0.42), turn), fill=255)
    elif name == "cross":
        arm = radius * 0.34
        draw.rectangle((mid - arm, mid - radius, mid + arm, mid + radius), fill=255)
        draw.rectangle((mid - radius, mid - arm, mid + radius, mid + arm), fill=255)
    elif name == "heart":
        lobe = radius * 0.53
        for x in (mid - lobe * 0.92, mid + lobe * 0.92):
            draw.ellipse((x - lobe, mid - radius * 0.88, x + lobe, mid - radius * 0.88 + 2 * lobe), fill=255)
        draw.polygon([(mid - radius * 0.95, mid - radius * 0.08), (mid + radius * 0.95, mid - radius * 0.08), (mid, mid + radius)], fill=255)  # fmt: skip
    else:
        raise ValueError(f"no shape is called {name!r}")
    return mask.resize((side, side), Image.Resampling.BOX)


def finish(canvas: Canvas) -> Image.Image:
    """Blur, noise and JPEG artefacts, each on some scenes."""
    rng, image = canvas.rng, canvas.image
    if rng.random() < 0.15:
        image = image.filter(ImageFilter.GaussianBlur(rng.uniform(0.3, 0.7) * canvas.unit))
    if rng.random() < 0.3:
        noise = np.random.default_rng(rng.getrandbits(32)).normal(0, rng.uniform(2, 9), (image.height, image.width, 1))
        image = Image.fromarray(np.clip(np.asarray(image) + noise, 0, 255).astype(np.uint8))
    if rng.random() < 0.3:
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=rng.randint(40, 90))
        image = Image.open(buffer).convert("RGB")
    return image


def cell_ids(ids: Image.Image, things: list[Thing], grid: tuple[int, int]) -> np.ndarray:
    """Per visual token, 1 + the thing that covers most of it (0 where things cover under 12 %), shape `grid`."""
    rows, columns = grid
    map_HW = np.asarray(ids.resize((columns * 8, rows * 8), Image.Resampling.NEAREST))
    flat = map_HW.reshape(rows, 8, columns, 8).transpose(0, 2, 1, 3).reshape(rows * columns, 64)
    counts = np.zeros((rows * columns, len(things) + 1), np.int64)
    np.add.at(counts, (np.arange(rows * columns)[:, None], flat), 1)
    counts[:, 0] = 7
    return counts.argmax(1).reshape(grid)


def dense_labels(cells: np.ndarray, things: list[Thing]) -> np.ndarray:
    """Labels per visual token from `cell_ids`: class, colour, number, row and column (in ninths of the picture, from 1).

    Shape [5, rows, columns], in the order of `DENSE`.
    """
    table = np.zeros((len(things) + 1, 3), np.int64)
    for i, thing in enumerate(things):
        table[i + 1] = (
            CLASS_ID.get(thing.name, CLASS_ID.get(thing.kind, 0)),
            COLOUR_ID.get(thing.colour, 0),
            0 if thing.number is None else thing.number + 1,
        )
    labels = table[cells].transpose(2, 0, 1)
    for thing in things:
        if thing.kind in ("shape", "object"):  # one mark for each thing, whatever its size, lets it be counted
            labels[2, int(thing.centre[1] // CELL), int(thing.centre[0] // CELL)] = MIDDLE
    rows, columns = ((np.arange(n) * 9 + 4) // n + 1 for n in cells.shape)
    places = np.stack(np.meshgrid(rows, columns, indexing="ij"))
    return np.concatenate([labels, np.minimum(places, 9)])
