"""Every layer in numbers: vanilla, baseline and policy side by side, and their difference."""

from __future__ import annotations

from macs.trace import LayerTrace
from macs.view.markup import esc, num
from macs.view.shown import Shown
from macs.view.words import Words


def render(shown: Shown, words: Words) -> str:
    """Return one row per layer, a button to go there, and the mean of each column."""
    names = {
        "v": words.policy(shown.now.vanilla.policy.preset),
        "b": words.policy(shown.base.policy.preset),
        "p": words.policy(shown.policy.policy.preset),
    }
    groups = (("slowest", ("v", "b", "p", "d")), ("dropped", ("b", "p", "d")), ("rerouted", ("p",)), ("lost_word", ("b", "p")))
    head = "".join(f'<th colspan="{len(columns)}">{esc(words(group))}</th>' for group, columns in groups)
    under = "".join(f'<th scope="col" class="num">{esc(names.get(c) or words("difference"))}</th>' for _, columns in groups for c in columns)
    rows = [rowdata(shown, i) for i in range(len(shown.policy.layers))]
    body = "".join(_row(i, layer.layer, row, shown, words) for i, (layer, row) in enumerate(zip(shown.policy.layers, rows)))
    mean = [sum(column) / len(rows) for column in zip(*rows)]
    foot = f'<tr><th scope="row">{esc(words("mean"))}</th>{_cells(mean, words, whole=False)}</tr>'
    return (
        f'<div class="scroll"><table class="numbers"><thead><tr class="grp"><th></th>{head}</tr><tr><th scope="col">{esc(words("layer_w"))}</th>{under}</tr></thead>'
        f"<tbody>{body}</tbody><tfoot>{foot}</tfoot></table></div>"
    )


def rowdata(shown: Shown, index: int) -> list[float]:
    """Return a layer's numbers: straggler factors, dropped and rerouted shares, tokens that lost every expert."""
    ep_size = shown.policy.ep_size
    vanilla, base, own = (trace.layers[index] for trace in (shown.now.vanilla, shown.base, shown.policy))
    slow = [layer.straggler(ep_size) for layer in (vanilla, base, own)]
    dropped = [_share(layer.dropped, layer) for layer in (base, own)]
    lost = [float(layer.lost_every_expert()) for layer in (base, own)]
    return [*slow, slow[2] - slow[1], *dropped, dropped[1] - dropped[0], _share(own.rerouted, own), *lost]


def _share(count: int, layer: LayerTrace) -> float:
    return count / max(layer.pairs, 1)


def _cells(row: list[float], words: Words, *, whole: bool = True) -> str:
    texts = [num(v) for v in row[:3]] + [_signed(row[3], 2, "")]
    texts += [f"{100 * v:.1f}%" for v in row[4:6]] + [_signed(100 * row[6], 1, "%"), f"{100 * row[7]:.1f}%"]
    texts += [str(int(v)) if whole else num(v, 1) for v in row[8:]]
    return "".join(f'<td class="num">{text}</td>' for text in texts)


def _signed(value: float, digits: int, unit: str) -> str:
    return f"{'+' if value > 0 else ''}{num(value, digits)}{unit}"


def _row(index: int, number: int, row: list[float], shown: Shown, words: Words) -> str:
    button = f'<button type="button" class="tool" data-send="layer" data-value="{index}">{esc(words("layer_n", l=number))}</button>'
    current = ' class="cur"' if index == shown.layer else ""
    return f'<tr data-layer="{index}"{current}><th scope="row">{button}</th>{_cells(row, words)}</tr>'
