"""Load ÷ capacity of every layer and expert: grey fills up to capacity, orange is over it."""

from __future__ import annotations

import base64
import io

import numpy as np
from PIL import Image

from macs.trace import Trace
from macs.view import svg
from macs.view.gantt import labelled
from macs.view.markup import esc, num, short
from macs.view.reading import queues
from macs.view.shown import Shown
from macs.view.words import Words

FULL = 3.0  # load ÷ capacity from which orange grows no stronger
MAX_CELLS = 2500  # above it the map is one picture, not a shape per cell
WIDTH, LEFT, TOP = 420, 22, 2
ROWS = 148  # pixels for all layers at least; a layer is 20 at most


def ratios(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """Return load ÷ capacity and pairs turned away, both [L, N]."""
    read = [queues(layer, trace.policy, trace.tokens.visual_T) for layer in trace.layers]
    return np.stack([q.ratio_N for q in read]), np.stack([q.turned_N for q in read])


def render(shown: Shown, words: Words) -> str:
    """Return both maps and the line that says them in numbers."""
    read = [(trace, *ratios(trace)) for trace in (shown.base, shown.policy)]
    maps = "".join(_map(trace, ratio_LN, turned_LN, shown, words) for trace, ratio_LN, turned_LN in read)
    (base, a_LN, _), (own, b_LN, _) = read
    counts = {"a": over(a_LN), "x": num(a_LN.max()), "b": over(b_LN), "y": num(b_LN.max())}
    text = words("heat_line", base=words.inside(base.policy.preset), name=words.inside(own.policy.preset), **counts)
    return f"<h2>{esc(words('fig_heat'))}</h2><p>{esc(words('fig_heat_s'))}</p>{maps}<p class=\"fn\">{esc(text)}</p>"


def over(ratio_LN: np.ndarray) -> int:
    """Return how many experts are over capacity."""
    return int((ratio_LN > 1 + 1e-6).sum())


def _map(trace: Trace, ratio_LN: np.ndarray, turned_LN: np.ndarray, shown: Shown, words: Words) -> str:
    layers, experts = ratio_LN.shape
    name = words.policy(trace.policy.preset)
    layer, expert = np.unravel_index(int(ratio_LN.argmax()), ratio_LN.shape)
    fullest = {"e": int(expert), "l": trace.layers[layer].layer, "x": num(ratio_LN.max())}
    label = words("heat_alt", name=name, n=experts, k=layers, over=over(ratio_LN), **fullest)
    height, width = min(20.0, max(ROWS / layers, 3.0)), (WIDTH - LEFT) / experts
    bottom = TOP + layers * height
    cells = _cells if layers * experts <= MAX_CELLS else _picture
    body = cells(trace, ratio_LN, turned_LN, height, width, words)
    for i in range(layers):
        if labelled(i, shown.layer, layers, int(layers * height / 14)):
            body += svg.text(LEFT - 6, TOP + (i + 0.5) * height + 4, str(trace.layers[i].layer), "st" if i == shown.layer else "", "end")
    body += f'<rect class="hl" x="{LEFT}" y="{short(TOP + shown.layer * height)}" width="{WIDTH - LEFT}" height="{short(height)}"/>'
    for g in range(trace.ep_size if trace.ep_size <= 8 else 0):
        body += svg.text(LEFT + (g + 0.5) * (WIDTH - LEFT) / trace.ep_size, bottom + 15, words("rank_t", g=g), "", "middle")
    return f"<h3>{esc(name)}</h3>{svg.figure(WIDTH, int(bottom + 20), label, body)}"


def _cells(trace: Trace, ratio_LN: np.ndarray, turned_LN: np.ndarray, height: float, width: float, words: Words) -> str:
    parts = []
    for i, (ratio_N, turned_N) in enumerate(zip(ratio_LN, turned_LN)):
        y = TOP + i * height
        row = []
        for e, (ratio, turned) in enumerate(zip(ratio_N.tolist(), turned_N.tolist())):
            x = LEFT + e * width
            title = words("heat_cell", l=trace.layers[i].layer, e=e, x=num(ratio), n=int(turned))
            shape = f'x="{short(x)}" y="{short(y)}" width="{short(width - 1)}" height="{short(height - 1)}"'
            row.append(f'<rect class="{"ho" if ratio > 1 + 1e-6 else "hu"}" style="--v:{100 * level(ratio):.0f}%" data-cell-expert="{e}" {shape}><title>{esc(title)}</title></rect>')
            if turned and width >= 16 and height >= 12:
                row.append(svg.text(x + width / 2, y + height / 2 + 4, str(int(turned)), "hv", "middle"))
        parts.append(f'<g data-cell-layer="{i}">{"".join(row)}</g>')
    return "".join(parts)


def level(ratio: float) -> float:
    """Return how far a cell is filled, from 0 to 1: below capacity in grey, over it in orange."""
    return min((ratio - 1) / (FULL - 1), 1.0) if ratio > 1 + 1e-6 else min(ratio, 1.0)


def _picture(trace: Trace, ratio_LN: np.ndarray, turned_LN: np.ndarray, height: float, width: float, words: Words) -> str:
    """Return the map as two masks, one per hue, so that the theme still colours it; a click finds its cell by place."""
    layers, experts = ratio_LN.shape
    hot_LN = ratio_LN > 1 + 1e-6
    levels_LN = np.clip(np.where(hot_LN, (ratio_LN - 1) / (FULL - 1), ratio_LN), 0, 1)  # as ``level``
    place = f'x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT}" height="{short(layers * height)}"'
    parts = []
    for kind, strength_LN in (("hu", np.where(hot_LN, 0, levels_LN)), ("ho", np.where(hot_LN, 0.24 + 0.76 * levels_LN, 0))):
        mask = f"{kind}-{trace.policy.preset}-{'p' if trace.policy.load == 'entropy' else 'b'}"
        image = f'<image href="{_grey(strength_LN)}" {place} preserveAspectRatio="none" style="image-rendering:pixelated"/>'
        parts.append(f'<mask id="{mask}">{image}</mask><rect class="{kind} solid" {place} mask="url(#{mask})"/>')
    return "".join(parts) + f'<rect class="hit-area" data-cell-rows="{layers}" data-cell-columns="{experts}" {place}/>'


def _grey(strength_LN: np.ndarray) -> str:
    buffer = io.BytesIO()
    Image.fromarray((255 * strength_LN).round().astype(np.uint8)).save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
