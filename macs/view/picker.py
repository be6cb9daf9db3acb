"""The layer picker: per layer two bars, the slowest rank over the mean under vanilla and under the policy."""

from __future__ import annotations

from macs.view.markup import esc, num, short
from macs.view.shown import Shown
from macs.view.words import Words


def render(shown: Shown, words: Words) -> str:
    """Return one button per MoE layer and the button that opens the settings."""
    ep_size = shown.policy.ep_size
    factors = [(a.straggler(ep_size), b.straggler(ep_size)) for a, b in zip(shown.now.vanilla.layers, shown.policy.layers)]
    top = max(max(pair) for pair in factors) or 1.0
    name = words.policy(shown.policy.policy.preset)
    buttons = "".join(
        f'<button type="button" class="ly" data-send="layer" data-value="{i}" aria-pressed="{str(i == shown.layer).lower()}" '
        f'tabindex="{0 if i == shown.layer else -1}" aria-label="{esc(words("layer_alt", l=layer.layer, v=num(v), p=num(p), name=name))}">'
        f'<span class="lb"><i class="v" style="height:{short(100 * v / top)}%"></i><i class="m" style="height:{short(100 * p / top)}%"></i></span><b>{layer.layer}</b></button>'
        for i, (layer, (v, p)) in enumerate(zip(shown.policy.layers, factors))
    )
    return (
        f'<div class="pick"><div class="cap">{esc(words("layer_pick"))}</div><div class="lys" role="group" aria-label="{esc(words("layer_pick"))}" data-rove="1">{buttons}</div></div>'
        f'<button type="button" class="more" data-opens="settings" aria-expanded="false" aria-controls="settings">{esc(words("more"))}</button>'
    )
