"""Load ÷ capacity of every layer and expert, and beside it of every rank: grey fills up to capacity, orange is over it."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass

import numpy as np
from PIL import Image

from macs.trace import Trace
from macs.view import svg
from macs.view.gantt import labelled
from macs.view.markup import esc, num, short
from macs.view.raster import MANY
from macs.view.reading import queues
from macs.view.shown import Shown
from macs.view.words import Words

FULL = 3.0  # load ÷ capacity from which orange grows no stronger
WIDTH, LEFT, TOP = 420, 22, 2
RANKS = 336  # pixels from which the map of ranks stands, beside that of experts
GAP = 12  # between the two
ROWS = 148  # pixels for all layers at least; a layer is 20 at most
NAMED_RANKS = 4  # ranks up to which the word fits under their experts, not the number alone


@dataclass(frozen=True)
class Cells:
    """One map: load ÷ capacity and pairs turned away of every layer (L) and expert or rank (X), and where it stands."""

    kind: str  # "expert" or "rank", what a cell leads to
    ratio_LX: np.ndarray
    turned_LX: np.ndarray
    left: float  # pixels
    right: float

    @property
    def over(self) -> int:
        """Return how many cells are over capacity."""
        return int((self.ratio_LX > 1 + 1e-6).sum())

    @property
    def width(self) -> float:
        return (self.right - self.left) / self.ratio_LX.shape[1]


def read(trace: Trace) -> tuple[Cells, Cells]:
    """Return the maps of experts and of ranks; a pair moved inside a rank loads it once."""
    queues_L = [queues(layer, trace.policy, trace.tokens.visual_T) for layer in trace.layers]
    turned_LN = np.stack([q.turned_N for q in queues_L])

    def by_rank(value_LN: np.ndarray) -> np.ndarray:
        return value_LN.reshape(len(queues_L), trace.ep_size, -1).sum(2)

    load_LG = by_rank(np.stack([q.load_kept_N + q.load_taken_N + q.load_dropped_N for q in queues_L]))
    capacity_LG = by_rank(np.stack([q.capacity_N for q in queues_L]))
    experts = Cells("expert", np.stack([q.ratio_N for q in queues_L]), turned_LN, LEFT, RANKS - GAP)
    return experts, Cells("rank", load_LG / np.maximum(capacity_LG, 1e-9), by_rank(turned_LN), RANKS, WIDTH)


def render(shown: Shown, words: Words) -> str:
    """Return the maps of baseline and policy and the line that says them in numbers."""
    traces = (shown.base, shown.policy)
    maps = [read(trace) for trace in traces]
    drawn = "".join(_map(trace, cells, shown, words) for trace, cells in zip(traces, maps))
    (base, base_ranks), (own, own_ranks) = maps
    counts = {"a": base.over, "x": num(base.ratio_LX.max()), "b": own.over, "y": num(own.ratio_LX.max()), "c": base_ranks.over, "d": own_ranks.over}
    text = words("heat_line", base=words.inside(shown.base.policy.preset), name=words.inside(shown.policy.policy.preset), **counts)
    return f"<h2>{esc(words('fig_heat'))}</h2><p>{esc(words('fig_heat_s'))}</p>{drawn}<p class=\"fn\">{esc(text)}</p>"


def _map(trace: Trace, both: tuple[Cells, Cells], shown: Shown, words: Words) -> str:
    experts = both[0]
    layers = len(trace.layers)
    name = words.policy(trace.policy.preset)
    layer, expert = np.unravel_index(int(experts.ratio_LX.argmax()), experts.ratio_LX.shape)
    fullest = {"e": int(expert), "l": trace.layers[layer].layer, "x": num(experts.ratio_LX.max())}
    label = words("heat_alt", name=name, n=trace.num_experts, k=layers, over=experts.over, **fullest)
    height = min(20.0, max(ROWS / layers, 3.0))
    bottom = TOP + layers * height
    body = ""
    for cells in both:
        draw = _shapes if cells.ratio_LX.size <= MANY else _picture
        body += draw(trace, cells, height, "policy" if trace is shown.policy else "base", words)
        body += f'<rect class="hl" x="{short(cells.left)}" y="{short(TOP + shown.layer * height)}" width="{short(cells.right - cells.left)}" height="{short(height)}"/>'
    for i in range(layers):
        if labelled(i, shown.layer, layers, int(layers * height / 14)):
            body += svg.text(LEFT - 6, TOP + (i + 0.5) * height + 4, str(trace.layers[i].layer), "st" if i == shown.layer else "", "end")
    for g in range(trace.ep_size if trace.ep_size <= 8 else 0):
        middle = experts.left + (g + 0.5) * (experts.right - experts.left) / trace.ep_size
        body += svg.text(middle, bottom + 15, words("rank_t", g=g) if trace.ep_size <= NAMED_RANKS else str(g), "", "middle")
    body += svg.text((RANKS + WIDTH) / 2, bottom + 15, words("ranks_t"), "", "middle")
    return f"<h3>{esc(name)}</h3>{svg.figure(WIDTH, int(bottom + 20), label, body)}"


def _shapes(trace: Trace, cells: Cells, height: float, place: str, words: Words) -> str:
    parts = []
    for i, (ratio_X, turned_X) in enumerate(zip(cells.ratio_LX.tolist(), cells.turned_LX.tolist())):
        y = TOP + i * height
        row = []
        for e, (ratio, turned) in enumerate(zip(ratio_X, turned_X)):
            x = cells.left + e * cells.width
            title = words(f"heat_{cells.kind}", l=trace.layers[i].layer, e=e, x=num(ratio), n=int(turned))
            shape = f'x="{short(x)}" y="{short(y)}" width="{short(cells.width - 1)}" height="{short(height - 1)}"'
            kind = "ho" if ratio > 1 + 1e-6 else "hu"
            row.append(f'<rect class="{kind}" style="--v:{100 * level(ratio):.0f}%" data-cell-{cells.kind}="{e}" {shape}><title>{esc(title)}</title></rect>')
            if turned and cells.width >= 16 and height >= 12:
                row.append(svg.text(x + cells.width / 2, y + height / 2 + 4, str(int(turned)), "hv", "middle"))
        parts.append(f'<g data-cell-layer="{i}">{"".join(row)}</g>')
    return "".join(parts)


def level(ratio: float) -> float:
    """Return how far a cell is filled, from 0 to 1: below capacity in grey, over it in orange."""
    return min((ratio - 1) / (FULL - 1), 1.0) if ratio > 1 + 1e-6 else min(ratio, 1.0)


def _picture(trace: Trace, cells: Cells, height: float, place: str, words: Words) -> str:
    """Return the map as two masks, one per hue, so that the theme still colours it; a click finds its cell by place."""
    layers, columns = cells.ratio_LX.shape
    hot_LX = cells.ratio_LX > 1 + 1e-6
    levels_LX = np.clip(np.where(hot_LX, (cells.ratio_LX - 1) / (FULL - 1), cells.ratio_LX), 0, 1)  # as ``level``
    box = f'x="{short(cells.left)}" y="{TOP}" width="{short(cells.right - cells.left)}" height="{short(layers * height)}"'
    parts = []
    for hue, strength_LX in (("hu", np.where(hot_LX, 0, levels_LX)), ("ho", np.where(hot_LX, 0.24 + 0.76 * levels_LX, 0))):
        mask = f"{hue}-{cells.kind}-{place}"
        image = f'<image href="{_grey(strength_LX)}" {box} preserveAspectRatio="none" style="image-rendering:pixelated"/>'
        parts.append(f'<mask id="{mask}">{image}</mask><rect class="{hue} solid" {box} mask="url(#{mask})"/>')
    return "".join(parts) + f'<rect class="hit-area" data-cell-kind="{cells.kind}" data-cell-rows="{layers}" data-cell-columns="{columns}" {box}/>'


def _grey(strength_LX: np.ndarray) -> str:
    buffer = io.BytesIO()
    Image.fromarray((255 * strength_LX).round().astype(np.uint8)).save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
