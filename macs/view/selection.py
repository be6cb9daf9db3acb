"""One token, expert or rank followed through every layer, and where the other views must mark it.

The strip carries ``data-marks``, from which page.js outlines the same thing in every view.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from macs.trace import DROPPED, EXPANDED, KEPT, REROUTED, Trace
from macs.view.markup import FATE_CLASS, FATE_WORD, esc, num, short
from macs.view.reading import Pairs, Queues, bars, pairs, queues
from macs.view.shown import Shown
from macs.view.words import Words

CROP = 72  # pixels of the patch's picture
BRICK = {KEPT: "pat-k", REROUTED: "pat-o", DROPPED: "pat-d"}
MAX_SLOTS = 3  # slots that lost something and are told in words; the table has all
MANY_LAYERS = 12  # above it the tables scroll sideways
MAX_BRICKS = 400  # of one queue; beyond it bricks are thinner than a pixel


def render(shown: Shown, words: Words) -> str:
    """Return the strip for the focus."""
    if shown.focus is None:
        return f'<div class="strip none" data-marks="{{}}"><p>{esc(words("nothing"))}</p></div>'
    kind, index = shown.focus
    left, right, marks = {"token": _token, "expert": _expert, "rank": _rank}[kind](index, shown, words)
    return f'<div class="strip" data-marks="{esc(json.dumps(marks))}"><div class="who">{left}</div><div class="more-of-it">{right}</div></div>'


def _head(title: str, words: Words) -> str:
    return f'<h2>{esc(title)}<button type="button" class="tool" data-focus="none">{esc(words("clear"))}</button></h2>'


def _names(shown: Shown, words: Words) -> dict[str, str]:
    return {"base": words.inside(shown.base.policy.preset), "name": words.inside(shown.policy.policy.preset)}


def _token(t: int, shown: Shown, words: Words) -> tuple[str, str, dict[str, Any]]:
    trace = shown.policy
    row, column = trace.tokens.position_T2[t]
    visual = bool(trace.tokens.visual_T[t])
    title = words("patch_t", r=row, c=column) if visual else words("token_t", t=visible(trace.tokens.text_T[t]))
    read = [pairs(own.layers[shown.layer], own.policy) for own in (shown.base, shown.policy)]
    sentences = [_weight_text(t, shown, words) if visual else words("counts_one")]
    sentences += _slot_texts(t, shown, read, words)
    text = "".join(f"<p>{esc(sentence)}</p>" for sentence in sentences)
    crop = _crop(t, shown) if visual and shown.pictures else ""
    table = f"<h3>{esc(words('every_layer'))} <small>{esc(words('fate_key'))}</small></h3>{_scrolled(_fate_table(t, shown, words), words('every_layer'))}"
    return f"{crop}<div>{_head(title, words)}{text}</div>", table, _token_marks(t, shown, read)


def visible(text: str) -> str:
    """Return a token's text with its white space made visible."""
    return text.replace("\n", "⏎").replace("\t", "⇥").replace(" ", "␣") if text.strip() == "" else text


def _weight_text(t: int, shown: Shown, words: Words) -> str:
    trace, layer = shown.policy, shown.layers[2]
    entropy_T = trace.entropy(trace.policy.entropy_source, layer)
    same_T = (trace.tokens.image_T == trace.tokens.image_T[t]) & trace.tokens.valid_T
    deviation = (entropy_T[t] - entropy_T[same_T].mean()) / (entropy_T[same_T].std() + trace.policy.eps)
    side = words("below" if deviation < 0 else "above")
    return words("counts_as", w=num(layer.decision.token_weight_T[t]), h=num(entropy_T[t]), z=num(abs(deviation), 1), side=side)


def _at(read: Pairs, t: int, slot: int) -> int:
    return int(np.nonzero((read.token_P == t) & (read.slot_P == slot))[0][0])


def _fate_text(read: Pairs, i: int, trace: Trace, index: int, words: Words) -> str:
    status = int(read.status_P[i])
    if status == REROUTED:
        return words("fate_moved", f=int(read.expert_P[i]))
    if status == KEPT:
        return words("fate_kept")
    missing = read.running_P[i] - trace.layers[index].decision.capacity_N[read.origin_P[i]]
    return words("fate_dropped", x=num(max(missing, 0.0), 0 if trace.policy.load == "tokens" else 2))


def _slot_texts(t: int, shown: Shown, read: list[Pairs], words: Words) -> list[str]:
    """Return one sentence for the slots that both policies keep, and one for each of the others, ``MAX_SLOTS`` at most."""
    at = [[_at(r, t, slot) for r in read] for slot in range(shown.policy.top_k)]
    weight_K = shown.layers[2].weight_TK[t]
    kept = [slot for slot, (i, j) in enumerate(at) if read[0].status_P[i] == KEPT == read[1].status_P[j]]
    lost = [slot for slot in range(len(at)) if slot not in kept]
    texts = [_slot_text(slot, *at[slot], shown, read, float(weight_K[slot]), words) for slot in lost[:MAX_SLOTS]]
    if len(lost) > MAX_SLOTS:
        texts.append(words("more_slots", n=len(lost) - MAX_SLOTS))
    if kept:
        listed = ", ".join(f"{int(read[0].origin_P[at[slot][0]])} ({num(weight_K[slot])})" for slot in kept)
        texts.append(words("kept_slots", list=listed))
    return texts


def _slot_text(slot: int, i: int, j: int, shown: Shown, read: list[Pairs], weight: float, words: Words) -> str:
    a, b = read
    expert = int(a.origin_P[i])
    places = {
        "i": words.ordinal(int(a.place_P[i]) + 1),
        "n": int((a.origin_P == expert).sum()),
        "j": words.ordinal(int(b.place_P[j]) + 1),
        "m": int((b.origin_P == expert).sum()),
    }
    fates = {"fa": _fate_text(a, i, shown.base, shown.layer, words), "fb": _fate_text(b, j, shown.policy, shown.layer, words)}
    return f"{words('slot_weight', s=slot, w=num(weight))} {words('fate_line', e=expert, **places, **fates, **_names(shown, words))}"


def _crop(t: int, shown: Shown) -> str:
    x0, y0, x1, y1 = (float(v) for v in shown.policy.tokens.cell_T4[t])
    picture = int(shown.policy.tokens.image_T[t])
    across, down = CROP / (x1 - x0), CROP / (y1 - y0)
    place = f"background-image:var(--picture-{picture});background-size:{across:.1f}px {down:.1f}px;background-position:{-x0 * across:.1f}px {-y0 * down:.1f}px"
    return f'<div class="crop" style="{place}" role="presentation"></div>'


def _scrolled(table: str, label: str) -> str:
    """Return a table that scrolls sideways where it is too wide, by keyboard too."""
    return f'<div class="ftw" tabindex="0" role="group" aria-label="{esc(label)}">{table}</div>'


def _fate_table(t: int, shown: Shown, words: Words) -> str:
    heads = _layer_heads(shown, words)
    rows = []
    for trace in (shown.base, shown.policy):
        name = words.policy(trace.policy.preset)
        rows.append(f'<tr class="gh"><th colspan="{len(trace.layers) + 2}">{esc(name)}</th></tr>')
        for slot in range(trace.top_k):
            cells = "".join(_fate_cell(t, slot, layer, i == shown.layer, words) for i, layer in enumerate(trace.layers))
            rows.append(f'<tr><th scope="row"><b>{"" if slot else esc(name)}</b></th><th class="sl">{esc(words("slot"))} {slot}</th>{cells}</tr>')
    many = " many" if len(shown.policy.layers) > MANY_LAYERS else ""
    return f'<table class="ft{many}"><thead><tr><th></th><th></th>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table>'


def _layer_heads(shown: Shown, words: Words) -> str:
    return "".join(
        f'<th scope="col"><span class="wide">{esc(words("layer_n", l=layer.layer))}</span><span class="narrow" aria-hidden="true">{layer.layer}</span></th>'
        for layer in shown.policy.layers
    )


def _fate_cell(t: int, slot: int, layer, current: bool, words: Words) -> str:
    status, origin = int(layer.decision.status_TC[t, slot]), int(layer.expert_TK[t, slot])
    text = {REROUTED: f"{origin}→{int(layer.decision.expert_TC[t, slot])}", DROPPED: f"{origin} ✕"}.get(status, str(origin))
    label = f"{words('expert')} {origin}, {words(FATE_WORD.get(status, 'kept'))}"
    return f'<td class="{FATE_CLASS.get(status, "pat-k")}{" cur" if current else ""}" aria-label="{esc(label)}"><b>{text}</b></td>'


def _token_marks(t: int, shown: Shown, read: list[Pairs]) -> dict[str, Any]:
    dots, arcs = [], []
    for name, own, trace in zip("ab", read, (shown.base, shown.policy)):
        queue = queues(trace.layers[shown.layer], trace.policy, trace.tokens.visual_T)
        for i in np.nonzero(own.token_P == t)[0]:
            expert = int(own.origin_P[i])
            dots.append([expert, name, round(_height(own, int(i), queue), 3)])
            if own.status_P[i] == REROUTED:
                target = int(own.expert_P[i])
                dots.append([target, name, round(float(queue.load_kept_N[target] + queue.load_taken_N[target] / 2), 3)])
                arcs += [f"{expert}-{target}"] if name == "b" else []
    return {"token": t, "dots": dots, "arcs": arcs}


def _height(own: Pairs, i: int, queue: Queues) -> float:
    """Return where the middle of a pair's brick lies in its expert's bar, in load units."""
    bottom = {fate: low for fate, low, _ in bars(queue, int(own.origin_P[i]))}[int(own.status_P[i])]
    return float(bottom + own.before_P[i] + own.load_P[i] / 2)


def _expert(e: int, shown: Shown, words: Words) -> tuple[str, str, dict[str, Any]]:
    base, own = (queues(trace.layers[shown.layer], trace.policy, trace.tokens.visual_T) for trace in (shown.base, shown.policy))
    layer = shown.layers[2]
    title = words("expert_t", e=e, g=e * shown.policy.ep_size // layer.num_experts, m=words.role(layer.modality_N[e]))
    routed, visual = int(base.routed_N[e]), int(base.visual_N[e])
    counts = {"a": base.kept_N[e], "b": base.dropped_N[e], "k": own.kept_N[e], "o": own.away_N[e], "d": own.dropped_N[e], "i": own.taken_N[e]}
    text = words("expert_line", n=routed, v=visual, t=routed - visual, **{k: int(v) for k, v in counts.items()}, **_names(shown, words))
    rows = "".join(_bricks(e, trace, shown.layer, words) for trace in (shown.base, shown.policy))
    right = f"<h3>{esc(words('queue_t'))} <small>{esc(words('queue_s'))}</small></h3>{rows}"
    return f"<div>{_head(title, words)}<p>{esc(text)}</p></div>", right, {"expert": e, **_served(shown, [e])}


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
    return {"tokens": np.nonzero(executed_T)[0].tolist(), "turned": np.nonzero(turned_T)[0].tolist()}


def _rank(g: int, shown: Shown, words: Words) -> tuple[str, str, dict[str, Any]]:
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
        **_names(shown, words),
    )
    left = f"<div>{_head(words('rank_t', g=g), words)}<p>{esc(text)}</p></div>"
    return left, _rank_table(g, shown, words), {"rank": g, **_served(shown, experts)}


def _rank_table(g: int, shown: Shown, words: Words) -> str:
    heads = _layer_heads(shown, words)
    rows = ""
    for trace in (shown.now.vanilla, shown.base, shown.policy):
        tokens = [layer.rank_tokens(trace.ep_size) for layer in trace.layers]
        cells = "".join(
            f'<td class="{"cur" if i == shown.layer else ""}"><b{" class=slow" if g == int(np.argmax(tokens_G)) else ""}>{int(tokens_G[g])}</b></td>'
            for i, tokens_G in enumerate(tokens)
        )
        rows += f'<tr><th scope="row"><b>{esc(words.policy(trace.policy.preset))}</b></th>{cells}</tr>'
    many = " many" if len(shown.policy.layers) > MANY_LAYERS else ""
    table = f'<table class="ft plain{many}"><thead><tr><th></th>{heads}</tr></thead><tbody>{rows}</tbody></table>'
    return f"<h3>{esc(words('rank_layers'))}</h3>{_scrolled(table, words('rank_layers'))}"
