"""A token followed through every layer: what it counts, what each of its slots met, and where its pairs lie."""

from __future__ import annotations

from typing import Any

import numpy as np

from macs.trace import DROPPED, KEPT, REROUTED, LayerTrace, Trace
from macs.view.markup import FATE_CLASS, FATE_WORD, esc, num
from macs.view.reading import Pairs, Queues, bars, pairs, queues
from macs.view.select_parts import head, layer_heads, names, scrolled, table_class
from macs.view.shown import Shown
from macs.view.words import Words

CROP = 72  # pixels of the patch's picture
MAX_SLOTS = 3  # slots that lost something and are told in words; the table has all


def token(t: int, shown: Shown, words: Words) -> tuple[str, str, dict[str, Any]]:
    """Return the strip's two halves and the marks for a token."""
    trace = shown.policy
    row, column = trace.tokens.position_T2[t]
    visual = bool(trace.tokens.visual_T[t])
    title = words("patch_t", r=row, c=column) if visual else words("token_t", t=visible(trace.tokens.text_T[t]))
    read = [pairs(own.layers[shown.layer], own.policy) for own in (shown.base, shown.policy)]
    sentences = [_weight_text(t, shown, words) if visual else words("counts_one")]
    sentences += _slot_texts(t, shown, read, words)
    text = "".join(f"<p>{esc(sentence)}</p>" for sentence in sentences)
    crop = _crop(t, shown) if visual and shown.pictures else ""
    table = f"<h3>{esc(words('every_layer'))} <small>{esc(words('fate_key'))}</small></h3>{scrolled(_fate_table(t, shown, words), words('every_layer'))}"
    return f"{crop}<div>{head(title, words)}{text}</div>", table, _token_marks(t, shown, read)


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
    a, b = read
    kept = [s for s, (i, j) in enumerate(at) if a.status_P[i] == KEPT == b.status_P[j] and a.origin_P[i] == b.origin_P[j]]
    lost = [slot for slot in range(len(at)) if slot not in kept]
    texts = [_slot_text(slot, *at[slot], shown, read, float(weight_K[slot]), words) for slot in lost[:MAX_SLOTS]]
    if len(lost) > MAX_SLOTS:
        texts.append(words("more_slots", n=len(lost) - MAX_SLOTS))
    if kept:
        listed = ", ".join(f"{int(read[0].origin_P[at[slot][0]])} ({num(weight_K[slot])})" for slot in kept)
        texts.append(words("kept_slots", list=listed))
    return texts


def _slot_text(slot: int, i: int, j: int, shown: Shown, read: list[Pairs], weight: float, words: Words) -> str:
    """Return what became of a slot under both; each run has routers of its own, so the slot may hold another expert there."""
    a, b = read
    e, f = int(a.origin_P[i]), int(b.origin_P[j])
    places = {
        "i": words.ordinal(int(a.place_P[i]) + 1),
        "n": int((a.origin_P == e).sum()),
        "j": words.ordinal(int(b.place_P[j]) + 1),
        "m": int((b.origin_P == f).sum()),
    }
    fates = {"fa": _fate_text(a, i, shown.base, shown.layer, words), "fb": _fate_text(b, j, shown.policy, shown.layer, words)}
    if e == f:
        line = words("fate_line", e=e, **places, **fates, **names(shown, words))
    else:
        titles = {"base": words.policy(shown.base.policy.preset), "name": words.policy(shown.policy.policy.preset)}
        line = words("fate_line_two", e=e, f=f, **places, **fates, **titles)
    return f"{words('slot_weight', s=slot, w=num(weight))} {line}"


def _crop(t: int, shown: Shown) -> str:
    x0, y0, x1, y1 = (float(v) for v in shown.policy.tokens.cell_T4[t])
    if x0 != x0:  # no place is known
        return ""
    picture = int(shown.policy.tokens.image_T[t])
    across, down = CROP / (x1 - x0), CROP / (y1 - y0)
    place = f"background-image:var(--picture-{picture});background-size:{across:.1f}px {down:.1f}px;background-position:{-x0 * across:.1f}px {-y0 * down:.1f}px"
    return f'<div class="crop" style="{place}" role="presentation"></div>'


def _fate_table(t: int, shown: Shown, words: Words) -> str:
    heads = layer_heads(shown, words)
    rows = []
    for trace in (shown.base, shown.policy):
        name = words.policy(trace.policy.preset)
        rows.append(f'<tr class="gh"><th colspan="{len(trace.layers) + 2}">{esc(name)}</th></tr>')
        for slot in range(trace.top_k):
            cells = "".join(_fate_cell(t, slot, layer, i == shown.layer, words) for i, layer in enumerate(trace.layers))
            rows.append(f'<tr><th scope="row"><b>{"" if slot else esc(name)}</b></th><th class="sl">{esc(words("slot"))} {slot}</th>{cells}</tr>')
    return f'<table class="{table_class(shown)}"><thead><tr><th></th><th></th>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table>'


def _fate_cell(t: int, slot: int, layer: LayerTrace, current: bool, words: Words) -> str:
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
    cell_4 = shown.policy.tokens.cell_T4[t]
    box = [int(shown.policy.tokens.image_T[t]), *(round(float(v), 5) for v in cell_4)] if np.isfinite(cell_4).all() else None
    return {"token": t, "dots": dots, "arcs": arcs, "box": box}


def _height(own: Pairs, i: int, queue: Queues) -> float:
    """Return where the middle of a pair's brick lies in its expert's bar, in load units."""
    bottom = {fate: low for fate, low, _ in bars(queue, int(own.origin_P[i]))}[int(own.status_P[i])]
    return float(bottom + own.before_P[i] + own.load_P[i] / 2)
