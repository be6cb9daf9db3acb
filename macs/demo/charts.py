"""Draws bar, line and pie charts whose values are known."""

import math
from dataclasses import dataclass

from PIL import Image, ImageDraw

from .canvas import Canvas, Thing, font, jitter, luma
from .vocabulary import COLOURS, LETTERS

TOP_VALUE = 10


@dataclass(frozen=True)
class Chart:
    """A chart of one value (1–10; shares for a pie) per entry; an entry has a colour, a letter, or both."""

    style: str  # bars, rows, line, pie
    values: tuple[int, ...]
    colours: tuple[str, ...]
    letters: tuple[str, ...]
    has_colours: bool
    has_letters: bool


def draw_chart(canvas: Canvas) -> Chart:
    """A random chart over the whole canvas; every bar, slice, point and letter becomes a thing."""
    rng = canvas.rng
    style = rng.choice(("bars", "bars", "rows", "rows", "line", "pie"))
    longest = {"bars": int(canvas.width // 22), "rows": int(canvas.height // 19), "line": int(canvas.width // 24)}
    count = rng.randint(3, 5) if style == "pie" else rng.randint(2, max(2, min(6, longest[style] - 1)))
    values = tuple(rng.sample(range(1, 7), count)) if style == "pie" else distinct_values(rng, count)
    has_letters = style == "line" or (style != "pie" and rng.random() < 0.6)
    has_colours = style == "pie" or (style != "line" and (rng.random() < 0.65 or not has_letters))
    colours = tuple(rng.sample(list(COLOURS), count)) if has_colours else (rng.choice(list(COLOURS)),) * count
    start = rng.randrange(len(LETTERS) - count)
    letters = tuple(LETTERS[start : start + count] if rng.random() < 0.5 else rng.sample(LETTERS, count))
    chart = Chart(style, values, colours, letters, has_colours, has_letters)
    ink = (25, 25, 30) if luma(canvas.image.resize((1, 1)).getpixel((0, 0))) > 110 else (235, 235, 235)
    {"bars": _bars, "rows": _rows, "line": _line, "pie": _pie}[style](canvas, chart, ink)
    return chart


def distinct_values(rng, count: int) -> tuple[int, ...]:
    """Values from 1 to 10, mostly all different so that extremes are clear."""
    return tuple(rng.sample(range(1, TOP_VALUE + 1), count))


def _label(canvas: Canvas, text: str, cx: float, cy: float, size: float, ink: tuple, known: bool) -> None:
    """Small text centred at (cx, cy) in canonical pixels; `known` letters become things."""
    pixels = max(7, round(size * canvas.unit))
    face = font(0, pixels)
    left, top, right, bottom = face.getbbox(text)
    x, y = round(cx * canvas.unit - (left + right) / 2), round(cy * canvas.unit - (top + bottom) / 2)
    if not known:
        ImageDraw.Draw(canvas.image).text((x, y), text, font=face, fill=ink)
        return
    mask = Image.new("L", (right + 1, bottom + 1), 0)
    ImageDraw.Draw(mask).text((0, 0), text, font=face, fill=255)
    u = canvas.unit
    box = ((x + left) / u, (y + top) / u, (x + right) / u, (y + bottom) / u)
    canvas.add(Thing("glyph", text, "none", box), ink, mask, (x, y))


def _bar(canvas: Canvas, chart: Chart, i: int, box: tuple) -> None:
    x0, y0, x1, y1 = (round(v * canvas.unit) for v in box)
    mask = Image.new("L", (max(1, x1 - x0), max(1, y1 - y0)), 255)
    rgb = jitter(canvas.rng, chart.colours[i])
    canvas.add(Thing("bar", "bar", chart.colours[i], box, chart.values[i]), rgb, mask, (x0, y0))
    edge = (20, 20, 20) if luma(rgb) > 90 else (200, 200, 200)
    ImageDraw.Draw(canvas.image).rectangle((x0, y0, x1 - 1, y1 - 1), outline=edge, width=max(1, round(canvas.unit)))


def _frame(canvas: Canvas, ink: tuple, letters: bool, upright: bool) -> tuple[float, float, float, float]:
    """Axes, ticks at 0, 5, 10 and grid lines at every second value; returns the plot's box (left, top, right, bottom)."""
    draw, w, h = ImageDraw.Draw(canvas.image), canvas.width, canvas.height
    left, right = (15, w - 4) if upright or letters else (7, w - 9)
    top, bottom = (8, h - (17 if letters else 6)) if upright else (4, h - 14)
    length = bottom - top if upright else right - left
    strong = canvas.rng.random() < 0.7
    for value in range(0, TOP_VALUE + 1, 2 if strong else 5):
        at = bottom - length * value / TOP_VALUE if upright else left + length * value / TOP_VALUE
        ends = (left, at, right, at) if upright else (at, top, at, bottom)
        faint = tuple((a + b) // 2 for a, b in zip(ink, (140, 140, 140)))
        draw.line(canvas.px(*ends), fill=faint, width=max(1, round(canvas.unit * 0.7)))
    for value in (0, 5, 10):
        at = bottom - length * value / TOP_VALUE if upright else left + length * value / TOP_VALUE
        where = (left - 8, at) if upright else (at, bottom + 7)
        _label(canvas, str(value), *where, 9, ink, known=False)
    draw.line(canvas.px(left, bottom, right, bottom), fill=ink, width=max(1, round(canvas.unit)))
    draw.line(canvas.px(left, top, left, bottom), fill=ink, width=max(1, round(canvas.unit)))
    return left, top, right, bottom


def _bars(canvas: Canvas, chart: Chart, ink: tuple) -> None:
    left, top, right, bottom = _frame(canvas, ink, chart.has_letters, upright=True)
    step = (right - left) / len(chart.values)
    thick = step * canvas.rng.uniform(0.5, 0.8)
    show = canvas.rng.random() < 0.35 and thick > 9
    for i, value in enumerate(chart.values):
        middle = left + step * (i + 0.5)
        y = bottom - (bottom - top) * value / TOP_VALUE
        _bar(canvas, chart, i, (middle - thick / 2, y, middle + thick / 2, bottom))
        if chart.has_letters:
            _label(canvas, chart.letters[i], middle, canvas.height - 8, 13, ink, known=True)
        if show and value < TOP_VALUE:
            _label(canvas, str(value), middle, y - 6, 10, ink, known=False)


def _rows(canvas: Canvas, chart: Chart, ink: tuple) -> None:
    left, top, right, bottom = _frame(canvas, ink, chart.has_letters, upright=False)
    step = (bottom - top) / len(chart.values)
    thick = step * canvas.rng.uniform(0.5, 0.8)
    show = canvas.rng.random() < 0.35 and thick > 9
    for i, value in enumerate(chart.values):
        middle = top + step * (i + 0.5)
        x = left + (right - left) * value / TOP_VALUE
        _bar(canvas, chart, i, (left, middle - thick / 2, x, middle + thick / 2))
        if chart.has_letters:
            _label(canvas, chart.letters[i], 7, middle, 13, ink, known=True)
        if show and value < TOP_VALUE:
            _label(canvas, str(value), x + 6, middle, 10, ink, known=False)


def _line(canvas: Canvas, chart: Chart, ink: tuple) -> None:
    left, top, right, bottom = _frame(canvas, ink, True, upright=True)
    step = (right - left) / len(chart.values)
    points = [
        (left + step * (i + 0.5), bottom - (bottom - top) * value / TOP_VALUE) for i, value in enumerate(chart.values)
    ]
    rgb = jitter(canvas.rng, chart.colours[0])
    flat = [value for point in points for value in canvas.px(*point)]
    ImageDraw.Draw(canvas.image).line(flat, fill=rgb, width=max(2, round(2 * canvas.unit)))
    for i, (x, y) in enumerate(points):
        side = max(5, round(8 * canvas.unit))
        mask = Image.new("L", (side, side), 0)
        ImageDraw.Draw(mask).ellipse((0, 0, side - 1, side - 1), fill=255)
        corner = (round(x * canvas.unit - side / 2), round(y * canvas.unit - side / 2))
        thing = Thing("point", "point", chart.colours[0], (x - 4, y - 4, x + 4, y + 4), chart.values[i])
        canvas.add(thing, rgb, mask, corner)
        _label(canvas, chart.letters[i], x, canvas.height - 8, 13, ink, known=True)


def _pie(canvas: Canvas, chart: Chart, ink: tuple) -> None:
    u, total = canvas.unit, sum(chart.values)
    radius = min(canvas.width, canvas.height) / 2 - canvas.rng.uniform(4, 14)
    cx, cy = canvas.width / 2, canvas.height / 2
    side = round(2 * radius * u)
    corner = (round((cx - radius) * u), round((cy - radius) * u))
    angle = canvas.rng.uniform(0, 360)
    for i, value in enumerate(chart.values):
        end = angle + 360 * value / total
        mask = Image.new("L", (side, side), 0)
        ImageDraw.Draw(mask).pieslice((0, 0, side - 1, side - 1), angle, end, fill=255)
        box = (cx - radius, cy - radius, cx + radius, cy + radius)
        canvas.add(Thing("slice", "slice", chart.colours[i], box), jitter(canvas.rng, chart.colours[i]), mask, corner)
        edge = math.radians(angle)
        ends = (cx, cy, cx + radius * math.cos(edge), cy + radius * math.sin(edge))
        ImageDraw.Draw(canvas.image).line(canvas.px(*ends), fill=ink, width=max(1, round(u)))
        angle = end
