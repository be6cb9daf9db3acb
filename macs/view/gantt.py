"""Who waits for whom: a layer ends when its slowest rank does; the others wait. Tokens, or milliseconds where measured."""

from __future__ import annotations

import numpy as np

from macs.trace import Trace
from macs.view import svg
from macs.view.markup import esc, gamma_text, num, short
from macs.view.shown import Shown
from macs.view.words import Words

WIDTH, LEFT, RIGHT = 420, 4, 416
ROOM = 53  # pixels for one policy's ranks
MAX_LABELS = 12
GAP = 1.0  # pixels between layers, for the barrier's line


def durations(trace: Trace, measured: bool) -> np.ndarray:
    """Return what each rank does in each layer [L, G]: tokens executed, or measured milliseconds in the experts."""
    if measured:
        return np.stack([1e3 * np.asarray(layer.seconds["experts"], float) for layer in trace.layers])
    return np.stack([layer.rank_tokens(trace.ep_size) for layer in trace.layers]).astype(float)


def is_measured(shown: Shown) -> bool:
    """Return whether every rank's time is known for the settings on the page."""
    traces = (shown.now.vanilla, shown.now.same_gamma, shown.now.same_time, shown.now.policy)
    return not shown.stale and shown.measured and all(len(x.seconds.get("experts", ())) == t.ep_size for t in traces for x in t.layers)


def waiting(time_LG: np.ndarray) -> float:
    """Return the share of all ranks' time that is spent waiting for the slowest."""
    return float(1 - time_LG.sum() / max((time_LG.max(1) * time_LG.shape[1]).sum(), 1e-12))


def render(shown: Shown, words: Words) -> str:
    """Return the three policies' bars over one time axis."""
    measured = is_measured(shown)
    traces = (shown.now.vanilla, shown.base, shown.policy)
    times = [durations(trace, measured) for trace in traces]
    longest = max(t.max(1).sum() for t in times)
    rows, y = "", 0.0
    for i, (trace, time_LG) in enumerate(zip(traces, times)):
        note = _note(time_LG, times[0], measured, words, first=i == 0)
        title = words.policy(trace.policy.preset) + ("" if i == 0 else f" {gamma_text(trace.policy)}")
        rows += svg.text(LEFT, y + 14, title, "st") + svg.text(RIGHT, y + 14, note, "", "end")
        rows += _bars(time_LG, shown, longest, y + 21)
        y += ROOM + 21 + 27
    axis = words("x_ms" if measured else "x_tok")
    body = rows + svg.text(LEFT, y + 6, axis)
    head = f"<h2>{esc(words('fig_gantt'))}</h2><p>{esc(words('fig_gantt_s'))}</p>"
    say = sentence(shown, times, words)
    return f'{head}{svg.figure(WIDTH, int(y) + 12, say, body)}<p class="fn">{esc(say)}</p>'


def sentence(shown: Shown, times: list[np.ndarray], words: Words) -> str:
    """Say how much of the time ranks wait under each policy, and which rank ends most layers last."""
    last_L = times[2].argmax(1)
    rank = int(np.bincount(last_L).argmax())
    shares = {name: f"{100 * waiting(time_LG):.0f}%" for name, time_LG in zip("abc", times)}
    names = {"base": words.inside(shown.base.policy.preset), "name": words.inside(shown.policy.policy.preset)}
    return words("gantt_line", g=rank, n=int((last_L == rank).sum()), k=len(last_L), **shares, **names)


def _note(time_LG: np.ndarray, vanilla_LG: np.ndarray, measured: bool, words: Words, *, first: bool) -> str:
    total = time_LG.max(1).sum()
    amount = f"{num(total, 1)} ms" if measured else f"{int(total)} {words('tokens_l')}"
    gain = "" if first else f", {num(vanilla_LG.max(1).sum() / max(total, 1e-12))}×"
    return f"{amount}{gain}, {100 * waiting(time_LG):.0f}% {words('waiting')}"


def _bars(time_LG: np.ndarray, shown: Shown, longest: float, top: float) -> str:
    layers, ranks = time_LG.shape
    scale = (RIGHT - LEFT - layers * GAP) / max(longest, 1e-12)
    pitch = ROOM / ranks
    height = pitch * 0.84
    parts, x = [], float(LEFT)
    for i in range(layers):
        slowest = time_LG[i].max()
        width = slowest * scale
        for g in range(ranks):
            own = time_LG[i, g] * scale
            kind = "gb gs" if time_LG[i, g] == slowest and g == int(time_LG[i].argmax()) else "gb"
            parts.append(_rect(x, top + g * pitch, own, height, kind))
            if width - own > 1.5:
                parts.append(_rect(x + own + 1, top + g * pitch, width - own - 1, height, "gw"))
        number = shown.policy.layers[i].layer
        parts.append(_hit(x, top, width, i))
        if labelled(i, shown.layer, layers, MAX_LABELS):
            parts.append(svg.text(x + width / 2, top + ROOM + 12, str(number), "st" if i == shown.layer else "", "middle"))
        x += width + GAP
        parts.append(svg.line((x - GAP / 2, top - 2), (x - GAP / 2, top + ROOM + 1), "bar"))
    return "".join(parts)


def labelled(index: int, current: int, count: int, most: int) -> bool:
    """Return whether a row of numbers has room for this one: the current one always, its neighbours then not."""
    step = -(-count // most)
    return index == current or (index % step == 0 and (step == 1 or abs(index - current) >= step / 2))


def _rect(x: float, y: float, width: float, height: float, kind: str) -> str:
    return f'<rect class="{kind}" x="{short(x)}" y="{short(y)}" width="{short(max(width, 0))}" height="{short(height)}"/>'


def _hit(x: float, top: float, width: float, layer: int) -> str:
    return f'<rect class="hit-area" data-cell-layer="{layer}" x="{short(x)}" y="{short(top)}" width="{short(width)}" height="{ROOM}"/>'
