"""Two policies side by side: which pairs of the layer looked at changed fate, what every layer gained and lost, what both answer.

A pair is a token's choice of an expert. After the first MoE layer each run has routers of its own, so some pairs are of one run only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from macs.trace import DROPPED, KEPT, PADDING, REROUTED, LayerTrace, Trace
from macs.view import maps, svg
from macs.view.gantt import labelled
from macs.view.ledger import mark_changes, settings_text
from macs.view.markup import FATE_WORD, esc, gamma_text, heading, num, short
from macs.view.select_parts import names
from macs.view.select_token import visible
from macs.view.shown import Shown
from macs.view.words import Words

FATES = (KEPT, REROUTED, DROPPED)
MAX_LISTED = 40  # changed pairs named one by one; the pair table has all
WIDTH, LEFT, RIGHT = 420, 44, 412
PANELS = ((24, 104), (150, 230))  # pixels from top to bottom: straggler factor, dropped share
MAX_LABELS = 12


@dataclass(frozen=True)
class Changed:
    """The pairs that both runs made in one layer, by rising token, and how many only one of them made."""

    token_P: np.ndarray
    expert_P: np.ndarray
    base_P: np.ndarray  # status under the baseline
    own_P: np.ndarray  # status under the policy
    base_alone: int
    own_alone: int

    @property
    def table(self) -> np.ndarray:
        """Return the pairs by fate [3, 3]: the baseline's in rows, the policy's in columns, in the order of ``FATES``."""
        return np.array([[int(((self.base_P == a) & (self.own_P == b)).sum()) for b in FATES] for a in FATES])

    @property
    def gained_P(self) -> np.ndarray:
        """Return which pairs the policy executes and the baseline drops."""
        return (self.base_P == DROPPED) & (self.own_P != DROPPED)

    @property
    def lost_P(self) -> np.ndarray:
        """Return which pairs the baseline executes and the policy drops."""
        return (self.base_P != DROPPED) & (self.own_P == DROPPED)


def changed(shown: Shown) -> Changed:
    """Return how the pairs of the layer looked at fare under baseline and policy."""
    base, own = (_pairs(trace.layers[shown.layer]) for trace in (shown.base, shown.policy))
    both, i, j = np.intersect1d(base[0], own[0], assume_unique=True, return_indices=True)
    token_P, expert_P = np.divmod(both, shown.policy.num_experts)
    return Changed(token_P, expert_P, base[1][i], own[1][j], len(base[0]) - len(both), len(own[0]) - len(both))


def _pairs(layer: LayerTrace) -> tuple[np.ndarray, np.ndarray]:
    status_TK = layer.decision.status_TC[:, : layer.expert_TK.shape[1]]
    token_P, slot_P = np.nonzero(status_TK != PADDING)
    return token_P * layer.num_experts + layer.expert_TK[token_P, slot_P], status_TK[token_P, slot_P]


def render(shown: Shown, words: Words) -> str:
    """Return the line in numbers, the map of changed patches, the table of fates, every layer's difference, both answers, the pairs."""
    pairs = changed(shown)
    choose = f'<button type="button" class="tool" data-opens="settings" aria-expanded="false" aria-controls="settings">{esc(words("diff_choose"))}</button>'
    title = words("diff_t", l=shown.number, **_titles(shown, words))
    return (
        heading(title, choose)
        + f'<p class="fn">{esc(sentence(shown, pairs, words))}</p><div class="sides"><div>{_map(shown, pairs, words)}</div>'
        + f"<div>{_table(shown, pairs, words)}{_answers(shown, words)}</div><div>{_every_layer(shown, words)}</div></div>"
        + _listed(shown, pairs, words)
    )


def _titles(shown: Shown, words: Words) -> dict[str, str]:
    return {"base": words.policy(shown.base.policy.preset), "name": words.policy(shown.policy.policy.preset)}


def sentence(shown: Shown, pairs: Changed, words: Words) -> str:
    """Say how many pairs end differently, and which way."""
    differ = int((pairs.base_P != pairs.own_P).sum())
    a, b = int(pairs.gained_P.sum()), int(pairs.lost_P.sum())
    counts = {"n": len(pairs.token_P), "m": differ, "a": a, "b": b, "c": differ - a - b, "l": shown.number}
    text = words("diff_line", **counts, **names(shown, words))
    alone = pairs.base_alone
    return f"{text} {words('diff_alone', x=alone, **names(shown, words))}" if alone else text


def _map(shown: Shown, pairs: Changed, words: Words) -> str:
    """Return the picture with each patch's pairs that only one of the two executes: solid the policy's, hatched the baseline's."""
    gained_T, lost_T = (np.bincount(pairs.token_P[which_P], minlength=len(shown.policy.tokens)) for which_P in (pairs.gained_P, pairs.lost_P))
    top_k, strips = shown.policy.top_k, []
    for t in np.nonzero((gained_T + lost_T > 0) & shown.policy.tokens.visual_T)[0]:
        x0, y0, x1, y1 = (float(v) for v in shown.policy.tokens.cell_T4[t])
        width = (x1 - x0) / top_k
        if gained_T[t]:
            strips.append(maps.Strip(int(t), KEPT, x0, y0, width * gained_T[t], y1 - y0))
        if lost_T[t]:
            strips.append(maps.Strip(int(t), DROPPED, x1 - width * lost_T[t], y0, width * lost_T[t], y1 - y0))
    keys = (("pat-k", shown.policy), ("pat-d", shown.base))
    legend = "".join(f'<li><i class="sw {kind}"></i>{esc(words("diff_alone_in", name=words.inside(trace.policy.preset)))}</li>' for kind, trace in keys)
    return f'{maps.over_picture(shown, strips, words("diff_map"), words)}<ul class="legend">{legend}</ul>'


def _table(shown: Shown, pairs: Changed, words: Words) -> str:
    columns = "".join(f'<th scope="col" class="num">{esc(words(FATE_WORD[fate]))}</th>' for fate in FATES)
    rows = "".join(
        f'<tr><th scope="row">{esc(words(FATE_WORD[fate]))}</th>'
        + "".join(f'<td class="num{" same" if a == b else ""}">{count}</td>' for b, count in enumerate(counts))
        + "</tr>"
        for a, (fate, counts) in enumerate(zip(FATES, pairs.table))
    )
    corner = words("diff_corner", **_titles(shown, words))
    return f'<table class="numbers crossed"><thead><tr><th>{esc(corner)}</th>{columns}</tr></thead><tbody>{rows}</tbody></table>'


def _answers(shown: Shown, words: Words) -> str:
    """Return what vanilla and both answer in their last run: differing words marked, and the KL from vanilla."""
    run, rows = shown.run, ""
    base = getattr(run, shown.beside)
    for trace, against in ((run.vanilla, run.vanilla), (base, run.vanilla), (run.policy, base)):
        text = f"<b>{mark_changes(against.answer, trace.answer)}</b>" if trace.answer else esc(words("no_answer"))
        kl = "–" if trace.kl is None else num(trace.kl, 3)
        note = "" if trace is run.vanilla else f" <small>{esc(settings_text(trace) if trace is run.policy else gamma_text(trace.policy))}</small>"
        rows += f'<tr><th scope="row">{esc(words.policy(trace.policy.preset))}{note}</th><td>{text}</td><td class="num">{kl}</td></tr>'
    heads = f'<th></th><th scope="col">{esc(words("answer"))}</th><th scope="col" class="num">{esc(words("diff_kl"))}</th>'
    return f'<table class="numbers answers"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>'


def _every_layer(shown: Shown, words: Words) -> str:
    """Return a dumbbell per layer, baseline to policy, on one scale for both: straggler factor over dropped share."""
    values = [_numbers(trace) for trace in (shown.base, shown.policy)]
    layers = len(shown.policy.layers)
    pitch = (RIGHT - LEFT) / layers
    body = ""
    for panel, (top, bottom) in enumerate(PANELS):
        base_L, own_L = (v[panel] for v in values)
        both_L = np.concatenate([base_L, own_L])
        low, high = (0.0 if panel else min(float(both_L.min()), 1.0)), max(float(both_L.max()), 0.05 if panel else 1.1)

        def at(value: float) -> float:
            return bottom - (bottom - top) * (value - low) / (high - low)

        for tick in svg.ticks(low, high, 4):
            body += svg.line((LEFT, at(tick)), (RIGHT, at(tick)), "gl") + svg.text(LEFT - 6, at(tick) + 4, f"{100 * tick:g}%" if panel else f"{tick:g}", "", "end")
        body += svg.text(LEFT, top - 10, words(("slowest", "y_drop")[panel]))
        for i in range(layers):
            x, a, b = LEFT + (i + 0.5) * pitch, float(base_L[i]), float(own_L[i])
            text = [f"{100 * v:.1f}%" if panel else num(v) for v in (a, b)]
            body += svg.line((x, at(a)), (x, at(b)), "eq") + svg.circle((x, at(a)), min(4.5, pitch / 2), text[0]) + svg.diamond((x, at(b)), min(4.5, pitch / 2), text[1])
            if labelled(i, shown.layer, layers, MAX_LABELS):
                body += svg.text(x, bottom + 15, str(shown.policy.layers[i].layer), "st" if i == shown.layer else "", "middle")
            body += f'<rect class="hit-area" data-cell-layer="{i}" x="{short(x - pitch / 2)}" y="{top}" width="{short(pitch)}" height="{bottom - top}"/>'
    say = words("diff_layers", **_titles(shown, words))
    return f"<h3>{esc(say)}</h3>{svg.figure(WIDTH, PANELS[-1][1] + 20, say, body)}"


def _numbers(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    return (
        np.array([layer.straggler(trace.ep_size) for layer in trace.layers]),
        np.array([layer.dropped / max(layer.pairs, 1) for layer in trace.layers]),
    )


def _listed(shown: Shown, pairs: Changed, words: Words) -> str:
    """Return the changed pairs one by one, the heaviest tokens first; each leads to its token."""
    weight_T = shown.layers[2].decision.token_weight_T
    differ = np.nonzero(pairs.base_P != pairs.own_P)[0]
    differ = differ[np.argsort(-weight_T[pairs.token_P[differ]], kind="stable")]
    chips = "".join(_chip(int(p), pairs, shown, words) for p in differ[:MAX_LISTED])
    more = f'<p class="fn">{esc(words("diff_more", n=len(differ) - MAX_LISTED))}</p>' if len(differ) > MAX_LISTED else ""
    return f'<h3>{esc(words("diff_listed"))}</h3><div class="tok changes" data-rove="grid">{chips}</div>{more}' if chips else ""


def _chip(p: int, pairs: Changed, shown: Shown, words: Words) -> str:
    token, tokens = int(pairs.token_P[p]), shown.policy.tokens
    row, column = tokens.position_T2[token]
    who = words("patch_t", r=row, c=column) if tokens.visual_T[token] else words("token_t", t=visible(tokens.text_T[token]))
    fates = {key: words(FATE_WORD[int(status)]) for key, status in (("a", pairs.base_P[p]), ("b", pairs.own_P[p]))}
    text = words("diff_pair", who=who, e=int(pairs.expert_P[p]), **fates)
    return f'<button type="button" data-focus="token" data-value="{token}" tabindex="-1">{esc(text)}</button>'
