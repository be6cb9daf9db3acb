"""An expert or a rank in the layer looked at: what it was routed and executes, and whose pairs those are."""

from __future__ import annotations

from typing import Any

import numpy as np

from macs.trace import DROPPED, EXPANDED, KEPT, REROUTED, Trace
from macs.view.markup import esc, num, short
from macs.view.raster import MANY, mask
from macs.view.reading import pairs, queues
from macs.view.select_parts import head, layer_heads, names, scrolled, table_class
from macs.view.shown import Shown
from macs.view.words import Words

BRICK = {KEPT: "pat-k", REROUTED: "pat-o", DROPPED: "pat-d"}
MAX_BRICKS = 400  # of one queue; beyond it bricks are thinner than a pixel


def expert(e: int, shown: Shown, words: Words) -> tuple[str, str, dict[str, Any]]:
    """Return the strip's two halves and the marks for an expert."""
    base, own = (queues(trace.layers[shown.layer], trace.policy, trace.tokens.visual_T) for trace in (shown.base, shown.policy))
    layer = shown.layers[2]
    title = words("expert_t", e=e, g=e * shown.policy.ep_size // layer.num_experts, m=words.role(layer.modality_N[e]))
    counts = {"n": base.routed_N[e], "v": base.visual_N[e], "m": own.routed_N[e], "u": own.visual_N[e]}
    counts |= {"a": base.kept_N[e], "b": base.dropped_N[e], "k": own.kept_N[e], "o": own.away_N[e], "d": own.dropped_N[e], "i": own.taken_N[e]}
    text = words("expert_line", **{k: int(v) for k, v in counts.items()}, **names(shown, words))
    rows = "".join(_bricks(e, trace, shown.layer, words) for trace in (shown.base, shown.policy))
    right = f"<h3>{esc(words('queue_t'))} <small>{esc(words('queue_s'))}</small></h3>{rows}"
    return f"<div>{head(title, words)}<p>{esc(text)}</p></div>", right, {"expert": e, **_served(shown, [e])}


def _bricks(e: int, trace: Trace, index: int, words: Words) -> str:
    read = pairs(trace.layers[index], trace.policy)
    own_P = np.nonzero(read.origin_P == e)[0]
    capacity = float(trace.layers[index].decision.capacity_N[e])
    scale = 100 / max(float(len(own_P)), capacity, 1e-9)  # one scale for both rows: a full token is as wide in each
    visual_T = trace.tokens.visual_T
    bricks = "".join(
        f'<i class="{BRICK.get(int(read.status_P[i]), "pat-k")}{"" if visual_T[read.token_P[i]] else " tx"}" data-focus="token" data-value="{read.token_P[i]}" '
        f'style="width:{short(read.load_P[i] * scale)}%"></i>'
        for i in own_P[:MAX_BRICKS]
    )
    limit = f'<span class="lm" style="left:{short(capacity * scale)}%"></span>'
    return f'<div class="qr"><span><b>{esc(words.policy(trace.policy.preset))}</b></span><div class="queue">{bricks}{limit}</div></div>'


def _served(shown: Shown, experts: list[int]) -> dict[str, Any]:
    """Return the tokens that the policy executes on these experts, and those that they turned away."""
    layer = shown.layers[2]
    top_k = shown.policy.top_k
    status_TC = layer.decision.status_TC
    executed_T = (np.isin(layer.decision.expert_TC, experts) & np.isin(status_TC, (KEPT, REROUTED, EXPANDED))).any(1)
    turned_T = (np.isin(layer.expert_TK, experts) & np.isin(status_TC[:, :top_k], (REROUTED, DROPPED))).any(1)
    return {"tokens": np.nonzero(executed_T)[0].tolist(), "turned": np.nonzero(turned_T)[0].tolist(), "veils": _veils(shown, executed_T, turned_T)}


def _veils(shown: Shown, executed_T: np.ndarray, turned_T: np.ndarray) -> list[list[str]]:
    """Return, for each picture of too many patches to be elements, the masks of those not concerned and of those turned away."""
    tokens = shown.policy.tokens
    placed_T = tokens.visual_T & tokens.valid_T & np.isfinite(tokens.cell_T4).all(1)
    if placed_T.sum() <= MANY:
        return []

    def drawn(i: int, which_T: np.ndarray) -> str:
        boxes = tokens.cell_T4[placed_T & (tokens.image_T == i) & which_T]
        return mask(boxes, [1.0] * len(boxes), shown.pictures[i].width, shown.pictures[i].height)

    return [[drawn(i, ~executed_T & ~turned_T), drawn(i, turned_T)] for i in range(len(shown.pictures))]


def rank(g: int, shown: Shown, words: Words) -> tuple[str, str, dict[str, Any]]:
    """Return the strip's two halves and the marks for a rank."""
    ep_size = shown.policy.ep_size
    vanilla, base, own = shown.layers
    per_rank = own.num_experts // ep_size
    experts = list(range(g * per_rank, (g + 1) * per_rank))
    routed_G = vanilla.rank_tokens(ep_size, before=True)
    read = [queues(layer, trace.policy, trace.tokens.visual_T) for layer, trace in ((base, shown.base), (own, shown.policy))]
    text = words(
        "rank_line",
        a=experts[0],
        b=experts[-1],
        n=int(routed_G[g]),
        tk=vanilla.pairs,
        x=num(routed_G[g] / max(vanilla.pairs / ep_size, 1e-12)),
        p=int(base.rank_tokens(ep_size)[g]),
        q=int(own.rank_tokens(ep_size)[g]),
        d=int(read[0].dropped_N[experts].sum()),
        f=int(read[1].dropped_N[experts].sum()),
        r=int(read[1].away_N[experts].sum()),
        **names(shown, words),
    )
    left = f"<div>{head(words('rank_t', g=g), words)}<p>{esc(text)}</p></div>"
    return left, _rank_table(g, shown, words), {"rank": g, **_served(shown, experts)}


def _rank_table(g: int, shown: Shown, words: Words) -> str:
    heads = layer_heads(shown, words)
    rows = ""
    for trace in (shown.now.vanilla, shown.base, shown.policy):
        tokens = [layer.rank_tokens(trace.ep_size) for layer in trace.layers]
        cells = "".join(
            f'<td class="{"cur" if i == shown.layer else ""}"><b{" class=slow" if g == int(np.argmax(tokens_G)) else ""}>{int(tokens_G[g])}</b></td>'
            for i, tokens_G in enumerate(tokens)
        )
        rows += f'<tr><th scope="row"><b>{esc(words.policy(trace.policy.preset))}</b></th>{cells}</tr>'
    table = f'<table class="{table_class(shown, "plain")}"><thead><tr><th></th>{heads}</tr></thead><tbody>{rows}</tbody></table>'
    return f"<h3>{esc(words('rank_layers'))}</h3>{scrolled(table, words('rank_layers'))}"
