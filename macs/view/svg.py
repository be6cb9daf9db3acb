"""Pieces of SVG for the figures; every colour is a class, so that a figure follows the page's theme."""

from __future__ import annotations

from typing import Sequence

import numpy as np

from macs.view.markup import esc, short

Point = tuple[float, float]


def text(x: float, y: float, what: str, kind: str = "", anchor: str = "start") -> str:
    """Return a label; ``what`` is plain."""
    return f'<text class="{kind}" x="{short(x)}" y="{short(y)}" text-anchor="{anchor}">{esc(what)}</text>'


def line(a: Point, b: Point, kind: str) -> str:
    """Return a straight line."""
    return f'<line class="{kind}" x1="{short(a[0])}" y1="{short(a[1])}" x2="{short(b[0])}" y2="{short(b[1])}"/>'


def polyline(points: Sequence[Point], kind: str) -> str:
    """Return a line through points."""
    return f'<polyline class="{kind}" points="{" ".join(f"{short(x)},{short(y)}" for x, y in points)}"/>'


def circle(at: Point, radius: float, label: str) -> str:
    """Return the baseline's mark, with a tooltip."""
    return f'<circle class="p1" cx="{short(at[0])}" cy="{short(at[1])}" r="{short(radius)}"><title>{esc(label)}</title></circle>'


def diamond(at: Point, radius: float, label: str) -> str:
    """Return the policy's mark, with a tooltip."""
    x, y = at
    return f'<path class="p2" d="M{short(x)} {short(y - radius)}l{radius} {radius}-{radius} {radius}-{radius}-{radius}z"><title>{esc(label)}</title></path>'


def figure(width: int, height: int, label: str, body: str) -> str:
    """Return the figure; ``label`` says in words what it shows."""
    return f'<svg class="fig" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{esc(label)}">{body}</svg>'


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return round values inside [low, high], at most ``most`` of them."""
    span = max(high - low, 1e-9)
    power = 10.0 ** np.floor(np.log10(span))
    step = next(power * m for m in (0.1, 0.2, 0.5, 1.0, 2.0, 5.0) if span / (power * m) <= most - 1)
    first = int(np.ceil(low / step - 1e-9))
    return [round(step * i, 10) for i in range(first, int(np.floor(high / step + 1e-9)) + 1)]
