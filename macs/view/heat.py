"""Load ÷ capacity of every layer and expert: grey fills up to capacity, orange is over it."""

from __future__ import annotations

import numpy as np

from macs.trace import Trace
from macs.view.markup import esc, num
from macs.view.reading import queues
from macs.view.shown import Shown
from macs.view.words import Words

FULL = 3.0  # load ÷ capacity from which orange grows no stronger


def ratios(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """Return load ÷ capacity and pairs turned away, both [L, N]."""
    read = [queues(layer, trace.policy, trace.tokens.visual_T) for layer in trace.layers]
    return np.stack([q.ratio_N for q in read]), np.stack([q.turned_N for q in read])


def render(shown: Shown, words: Words) -> str:
    """Return both maps and the line that says them in numbers."""
    read = [(trace, *ratios(trace)) for trace in (shown.base, shown.policy)]
    maps = "".join(_map(trace, ratio_LN, turned_LN, shown, words) for trace, ratio_LN, turned_LN in read)
    (base, a_LN, _), (own, b_LN, _) = read
    text = words(
        "heat_line",
        base=words.policy(base.policy.preset),
        name=words.policy(own.policy.preset),
        a=int((a_LN > 1 + 1e-6).sum()),
        x=num(a_LN.max()),
        b=int((b_LN > 1 + 1e-6).sum()),
        y=num(b_LN.max()),
    )
    return f"<h2>{esc(words('fig_heat'))}</h2><p>{esc(words('fig_heat_s'))}</p>{maps}<p class=\"fn\">{esc(text)}</p>"


def _map(trace: Trace, ratio_LN: np.ndarray, turned_LN: np.ndarray, shown: Shown, words: Words) -> str:
    layer, expert = np.unravel_index(int(ratio_LN.argmax()), ratio_LN.shape)
    name = words.policy(trace.policy.preset)
    label = words(
        "heat_alt",
        name=name,
        n=ratio_LN.shape[1],
        k=ratio_LN.shape[0],
        over=int((ratio_LN > 1 + 1e-6).sum()),
        e=int(expert),
        l=trace.layers[layer].layer,
        x=num(ratio_LN.max()),
    )
    rows = "".join(_row(i, trace, ratio_LN[i], turned_LN[i], shown.layer == i, words) for i in range(len(ratio_LN)))
    ranks = "".join(f"<span>{esc(words('rank_t', g=g))}</span>" for g in range(trace.ep_size))
    style = f"--n:{ratio_LN.shape[1]};--g:{trace.ep_size}"
    return f'<h3>{esc(name)}</h3><div class="heat" style="{style}" role="img" aria-label="{esc(label)}">{rows}<div class="hr foot">{ranks}</div></div>'


def _row(index: int, trace: Trace, ratio_N: np.ndarray, turned_N: np.ndarray, current: bool, words: Words) -> str:
    number = trace.layers[index].layer
    cells = "".join(_cell(number, e, float(x), int(n), words) for e, (x, n) in enumerate(zip(ratio_N, turned_N)))
    return f'<div class="hr{" cur" if current else ""}" data-cell-layer="{index}"><span class="hn">{number}</span>{cells}</div>'


def _cell(layer: int, expert: int, ratio: float, turned: int, words: Words) -> str:
    over = ratio > 1 + 1e-6
    level = min((ratio - 1) / (FULL - 1), 1.0) if over else min(ratio, 1.0)
    title = words("heat_cell", l=layer, e=expert, x=num(ratio), n=turned)
    return f'<i class="{"ho" if over else "hu"}" data-cell-expert="{expert}" style="--v:{100 * level:.0f}%" title="{esc(title)}">{turned or ""}</i>'
