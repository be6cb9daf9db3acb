"""Every expert's queue by rank, baseline over policy, cut at its capacity; one vertical scale for both."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from macs.trace import DROPPED, KEPT, REROUTED, Trace
from macs.view.markup import esc, gamma_text, heading, num, short
from macs.view.reading import Queues, bars, queues
from macs.view.shown import Shown
from macs.view.words import Words

HEIGHT = 232  # pixels for both panels together
MAX_UNIT = 12  # pixels per pair at most, for layers with few pairs
WIDE = 8  # experts per rank above which chips lose the role, and only large numbers are written
WIDER = 16  # experts per rank above which two cards stand in a row, not four
LOUD = 0.4  # of the most that an expert turns away: less is not written on a wide board
BAR_CLASS = {KEPT: "pat-k", "taken": "pat-i", REROUTED: "pat-o", DROPPED: "pat-d"}


@dataclass(frozen=True)
class Panel:
    """One policy's half of the board."""

    trace: Trace
    queue: Queues
    name: str
    top: float  # load units that the panel must show

    @property
    def digits(self) -> int:
        return 0 if self.trace.policy.load == "tokens" else 1


def panel(trace: Trace, index: int, words: Words) -> Panel:
    """Return the panel of one policy for the layer at ``index``."""
    layer = trace.layers[index]
    queue = queues(layer, trace.policy, trace.tokens.visual_T)
    stacks = [bottom + height for e in range(layer.num_experts) for _, bottom, height in bars(queue, e)]
    return Panel(trace, queue, words.policy(trace.policy.preset), float(max(max(stacks), queue.executed_N.max(), 1)))


def render(shown: Shown, words: Words) -> str:
    """Return the board: a card per rank, a column per expert, and a line that says it in numbers."""
    upper, lower = (panel(trace, shown.layer, words) for trace in (shown.base, shown.policy))
    unit = min(HEIGHT / (upper.top + lower.top), MAX_UNIT)
    step = tick_step(max(upper.top, lower.top))
    cards = "".join(_card(g, upper, lower, shown, words, step) for g in range(shown.policy.ep_size))
    per_rank = shown.policy.num_experts // shown.policy.ep_size
    style = f"--u:{unit:.3f}px;--a:{upper.top:.2f};--b:{lower.top:.2f};--step:{step:g};--per:{per_rank}"
    wide = (" wide" if per_rank > WIDE else "") + (" pairs" if per_rank > WIDER else "")
    return (
        heading(words("board_t"), _legend(words))
        + f'<div class="board{wide}" style="{style}"><p class="rt ra">{_title(upper, words)}</p><p class="rt rz">{_title(lower, words)}</p>'
        f'<div class="cards" data-rove="grid">{cards}</div></div><p class="fn">{esc(line(shown, lower, words))}</p>'
    )


def tick_step(top: float) -> float:
    """Return a round distance between ticks that gives three to six of them up to ``top``."""
    power = 10.0 ** np.floor(np.log10(max(top, 1e-9)))
    return float(next(power * m for m in (0.2, 0.5, 1.0, 2.0) if top / (power * m) <= 6))


def line(shown: Shown, own: Panel, words: Words) -> str:
    """Say the board in numbers: the fullest expert, and what the policy turned away."""
    queue, layer = own.queue, shown.layers[2]
    expert = int(np.argmax(queue.routed_N))
    dropped_TK = layer.decision.status_TC[:, : shown.policy.top_k] == DROPPED
    return words(
        "board_line",
        e=expert,
        g=expert * shown.policy.ep_size // layer.num_experts,
        n=int(queue.routed_N[expert]),
        x=num(queue.routed_N[expert] / max(queue.routed_N.mean(), 1e-12)),
        name=own.name,
        t=int(queue.turned_N.sum()),
        b=int(queue.away_N.sum()),
        d=int(queue.dropped_N.sum()),
        v=int(dropped_TK[shown.policy.tokens.visual_T].sum()),
    )


def _title(panel: Panel, words: Words) -> str:
    unit = words("counts_tokens" if panel.trace.policy.load == "tokens" else "counts_w")
    gamma = gamma_text(panel.trace.policy)
    capacity = f", {words('capacity_is', c=_capacities(panel))}" if gamma else ""
    return f"<b>{esc(panel.name)}</b>{esc(f' {gamma}' if gamma else '')}: {esc(unit + capacity)}"


def _capacities(panel: Panel) -> str:
    low, high = (num(v, panel.digits) for v in (panel.queue.capacity_N.min(), panel.queue.capacity_N.max()))
    return low if low == high else f"{low}–{high}"


def _legend(words: Words) -> str:
    entries = (("pat-e", "executed"), ("pat-k", "counted"), ("pat-i", "rer_here"), ("pat-o", "rer_away"), ("pat-d", "dropped"), ("l", "limit"))
    return '<ul class="legend">' + "".join(f'<li><i class="sw {kind}"></i>{esc(words(key))}</li>' for kind, key in entries) + "</ul>"


def _card(rank: int, upper: Panel, lower: Panel, shown: Shown, words: Words, step: float) -> str:
    per_rank = shown.policy.num_experts // shown.policy.ep_size
    experts = range(rank * per_rank, (rank + 1) * per_rank)
    routed_G = shown.layers[0].rank_tokens(shown.policy.ep_size, before=True)
    feet = "".join(f"<span>{esc(p.name)} {_slowest(p.queue.executed_N.reshape(-1, per_rank).sum(1), rank)}</span>" for p in (upper, lower))
    columns = "".join(_expert(e, rank, upper, lower, shown, words) for e in experts)
    return (
        f'<div class="rank" data-rank="{rank}"><div class="rh"><button type="button" data-focus="rank" data-value="{rank}" tabindex="-1"><b>{esc(words("rank_t", g=rank))}</b></button>'
        f'<span>{esc(words("asked"))} {_slowest(routed_G, rank)}</span></div><div class="cols"><span class="pl a">{esc(upper.name)}</span><span class="pl b">{esc(lower.name)}</span>'
        f"{columns}{_arcs(lower.queue, experts)}{_ticks(upper.top, 'a', step)}{_ticks(lower.top, 'b', step)}</div><div class=\"rf\">{feet}</div></div>"
    )


def _slowest(tokens_G: np.ndarray, rank: int) -> str:
    mark = ' class="slow"' if rank == int(np.argmax(tokens_G)) and len(tokens_G) > 1 else ""
    return f"<b{mark}>{int(tokens_G[rank])}</b>"


def _ticks(top: float, name: str, step: float) -> str:
    return "".join(f'<span class="yt {name}" style="--y:{step * i:g}">{step * i:g}</span>' for i in range(1, int(top / step) + 1))


def _expert(e: int, rank: int, upper: Panel, lower: Panel, shown: Shown, words: Words) -> str:
    role = words.role(shown.layers[2].modality_N[e])
    taken = int(lower.queue.taken_N[e])
    return (
        f'<button type="button" class="ex" data-expert="{e}" tabindex="-1" aria-label="{esc(_label(e, rank, role, (upper, lower), words))}">'
        f"{_plot(e, upper, 'a')}{_plot(e, lower, 'b')}"
        f'<span class="arcs">{f"+{taken}" if taken else ""}</span><span class="chip"><b>{e}</b><small>{esc(role)}</small></span></button>'
    )


def _label(e: int, rank: int, role: str, panels: tuple[Panel, ...], words: Words) -> str:
    parts = [words("queue_alt", e=e, g=rank, m=role)]
    for p in panels:
        q = p.queue
        counts = {"n": int(q.routed_N[e]), "k": int(q.kept_N[e]), "i": int(q.taken_N[e]), "o": int(q.away_N[e]), "d": int(q.dropped_N[e])}
        parts.append(words("queue_alt_p", name=p.name, c=num(q.capacity_N[e], p.digits), **counts))
    return " ".join(parts)


def _plot(e: int, panel: Panel, name: str) -> str:
    queue, pieces = panel.queue, bars(panel.queue, e)
    drawn = "".join(f'<i class="q {BAR_CLASS[fate]}" style="--y:{short(bottom)};--h:{short(height)}"></i>' for fate, bottom, height in pieces if height)
    executed = int(queue.executed_N[e])
    top = max(executed, max(bottom + height for _, bottom, height in pieces if height or not bottom))
    crowded = len(queue.routed_N) > WIDE * panel.trace.ep_size
    quiet = crowded and queue.turned_N[e] < LOUD * queue.turned_N.max()
    dropped, away = (0, 0) if quiet else (int(queue.dropped_N[e]), int(queue.away_N[e]))
    counts = (f'<em class="d">−{dropped}</em>' if dropped else "") + (f'<em class="r">↷{away}</em>' if away else "")
    wide = f'<i class="pat-e" style="--y:0;--h:{executed}"></i>' if executed else ""
    number = f'<span class="n" style="--y:{short(top)}">{counts}</span>' if counts else ""
    limit = f'<i class="lim" style="--y:{short(float(queue.capacity_N[e]))}"></i>' if queue.capacity_N[e] <= panel.top else ""
    return f'<span class="plot {name}">{wide}{drawn}{limit}{number}</span>'


def _arcs(queue: Queues, experts: range) -> str:
    inside = [(a - experts.start, b - experts.start, n) for a, b, n in queue.flows if a in experts]
    if not inside:
        return ""
    most, span = max(n for _, _, n in queue.flows), max(len(experts) - 1, 1)

    def path(a: int, b: int, n: int) -> str:
        depth = 12 + 26 * abs(a - b) / span
        x, y = 100 * a + 50, 100 * b + 50
        return f'<path data-flow="{experts.start + a}-{experts.start + b}" d="M{x} 0C{x} {depth:.0f},{y} {depth:.0f},{y} 2" stroke-width="{0.8 + 3.4 * n / most:.2f}"/>'

    paths = "".join(path(*flow) for flow in inside)
    return f'<svg class="flow" viewBox="0 0 {100 * len(experts)} 34" preserveAspectRatio="none" aria-hidden="true">{paths}</svg>'
