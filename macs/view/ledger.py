"""The ledger: one row per policy, from the fate of a layer's pairs to the answer."""

from __future__ import annotations

import difflib

import numpy as np

from macs.trace import DROPPED, KEPT, REROUTED, LayerTrace, Trace
from macs.view.gantt import durations, is_measured
from macs.view.markup import FATE_CLASS, FATE_WORD, esc, num, short
from macs.view.shown import Shown
from macs.view.words import Words

LONG = 14  # characters of an answer from which it is cut to two lines until pointed at
ROWS = ("vanilla", "same_gamma", "same_time", "policy")


def render(shown: Shown, words: Words) -> str:
    """Return the table and the formulas under it."""
    shown_rows = ROWS if shown.scored else ROWS[:1]
    traces = [getattr(shown.now, row) for row in shown_rows]
    widest = max(int(trace.layers[shown.layer].rank_tokens(trace.ep_size).max()) for trace in traces)
    rows = "".join(_row(row, shown, words, max(widest, 1)) for row in shown_rows)
    return (
        f'<table class="ledger"><caption class="sr">{esc(words("ledger_caption"))}</caption>'
        f"{_head(shown, words)}<tbody>{rows}</tbody></table><p class=\"fn\">{esc(words('ledger_note'))}</p>"
    )


def _head(shown: Shown, words: Words) -> str:
    layer = shown.layers[2]
    fates = words("fates_sum", kept=words("kept"), rerouted=words("rerouted"), dropped=words("dropped"), n=layer.pairs)
    groups = (
        f"<th></th><th colspan=2>{esc(words('layer_of', l=shown.number))}</th>"
        f"<th colspan=3>{esc(words('all_layers', n=len(shown.policy.layers)))}</th><th colspan=2>{esc(words('answer'))}</th>"
    )
    columns = (
        f'<th scope="col">{esc(words("policy"))}</th><th scope="col">{esc(fates)}</th><th scope="col">{esc(words("tokens_rank"))}</th>'
        + "".join(f'<th scope="col" class="num">{esc(words(key))}</th>' for key in ("dropped", "slowest", "speedup"))
        + f'<th scope="col"><span class="sr">{esc(words("answer"))}</span></th><th scope="col" class="num">{esc(words("klw"))}</th>'
    )
    widths = "".join(f'<col class="{name}">' for name in ("c-name", "c-fates", "c-ranks", "c-num", "c-num", "c-speed", "c-answer", "c-kl"))
    return f'<colgroup>{widths}</colgroup><thead><tr class="grp">{groups}</tr><tr>{columns}</tr></thead>'


def _row(row: str, shown: Shown, words: Words, widest: int) -> str:
    trace: Trace = getattr(shown.now, row)
    layer = trace.layers[shown.layer]
    numbers = (
        ("dropped", f"{100 * trace.share(DROPPED):.1f}%"),
        ("slowest", num(trace.straggler())),
        ("speedup", f"{num(mean_speedup(shown.now.vanilla, trace))}×"),
    )
    timed = f"<small>{esc(words('measured_x', x=num(measured_speedup(shown.now.vanilla, trace))))}</small>" if is_measured(shown) else ""
    cells = "".join(
        f'<td class="num" data-col="{key}" data-label="{esc(words(key))}">{text}{timed if key == "speedup" else ""}</td>' for key, text in numbers
    )
    ran = getattr(shown.run, row)
    old = "" if shown.answered(row) else " old"
    origin = f'<span class="from">{esc(words("from", settings=settings_text(ran)))}</span>' if old else ""
    kl = "–" if trace.kl is None else num(trace.kl, 3)
    return (
        f'<tr data-row="{row}"{_marks(row, shown)}><th scope="row"><b>{esc(words.policy(trace.policy.preset))}</b>'
        f"<small>{esc(_note(row, trace, words))}</small></th>"
        f'<td class="fates">{_fates(layer, words)}</td><td class="ranks">{_ranks(layer, trace.ep_size, widest, words)}</td>{cells}'
        f'<td class="ans{old}">{_answer(trace.answer, shown.now.vanilla.answer, row, words)}{origin}</td>'
        f'<td class="num kl{old}" data-col="kl" data-label="{esc(words("klw"))}">{kl}</td></tr>'
    )


def _marks(row: str, shown: Shown) -> str:
    return ' class="ours"' if row == "policy" else ' class="beside"' if row == shown.beside else ""


def _note(row: str, trace: Trace, words: Words) -> str:
    if row == "vanilla":
        return ""
    if row != "policy" and trace.policy.overflow == "none":
        return words("row_fixed")
    return settings_text(trace) if row == "policy" else words(f"row_{row}", g=f"{trace.policy.gamma:.2f}")


def settings_text(trace: Trace) -> str:
    """Return the two settings that the answers depend on most, as "γ 1.00, δ 1.0"."""
    return f"γ {trace.policy.gamma:.2f}, δ {trace.policy.delta:.1f}"


def mean_speedup(vanilla: Trace, trace: Trace) -> float:
    """Return the mean over layers of vanilla's slowest rank ÷ the policy's, from tokens (§5)."""
    slowest = ((a.rank_tokens(trace.ep_size).max(), b.rank_tokens(trace.ep_size).max()) for a, b in zip(vanilla.layers, trace.layers))
    return float(np.mean([before / max(after, 1) for before, after in slowest]))


def measured_speedup(vanilla: Trace, trace: Trace) -> float:
    """Return the mean over layers of vanilla's slowest rank ÷ the policy's, from the ranks' clocks in the experts."""
    before_L, after_L = (durations(t, measured=True).max(1) for t in (vanilla, trace))
    return float((before_L / np.maximum(after_L, 1e-9)).mean())


def _fates(layer: LayerTrace, words: Words) -> str:
    counts = ((KEPT, layer.kept), (REROUTED, layer.rerouted), (DROPPED, layer.dropped))
    label = ", ".join(f"{words(FATE_WORD[status])} {count}" for status, count in counts)
    pieces = "".join(f'<i class="{FATE_CLASS[s]}" style="flex:{n}"><b>{n}</b></i>' for s, n in counts if n)
    extra = f"<small>{esc(words('plus_expanded', n=layer.expanded))}</small>" if layer.expanded else ""
    return f'<div class="stack" role="img" aria-label="{esc(label)}">{pieces}</div>{extra}'


def _ranks(layer: LayerTrace, ep_size: int, widest: int, words: Words) -> str:
    tokens_G = layer.rank_tokens(ep_size)
    slowest = int(np.argmax(tokens_G))
    bars = "".join(
        f'<div class="rb{" slow" if g == slowest else ""}"><i class="busy" style="width:{short(100 * n / widest)}%"></i>'
        f'<i class="wait" style="width:{short(100 * (tokens_G[slowest] - n) / widest)}%"></i></div>'
        for g, n in enumerate(tokens_G)
    )
    label = words("ranks_alt", list=", ".join(str(int(n)) for n in tokens_G), last=ep_size - 1)
    named = f"<b>{int(tokens_G[slowest])}</b><small>{esc(words('rank_t', g=slowest))}</small>"
    return f'<div class="cr"><div class="rbs{" many" if ep_size > 8 else ""}" role="img" aria-label="{esc(label)}">{bars}</div><div class="rbn">{named}</div></div>'


def _answer(answer: str, vanilla: str, row: str, words: Words) -> str:
    long = ' class="long"' if len(answer) > LONG else ""
    text = f"<b{long}>{mark_changes(vanilla, answer)}</b>" if answer else f"<b class=none>{esc(words('no_answer'))}</b>"
    if row == "vanilla" or not (answer or vanilla):
        return text
    return f"{text} <small>{esc(words('same'))}</small>" if answer == vanilla else f'{text} <small class="bad">{esc(words("changed"))}</small>'


def mark_changes(before: str, after: str) -> str:
    """Return ``after`` as markup with the words that ``before`` does not have in their place marked."""
    old, new = before.split(), after.split()
    matcher = difflib.SequenceMatcher(a=old, b=new, autojunk=False)
    parts = []
    for kind, _, _, start, end in matcher.get_opcodes():
        text = esc(" ".join(new[start:end]))
        if text:
            parts.append(text if kind == "equal" else f"<mark>{text}</mark>")
    return " ".join(parts)
