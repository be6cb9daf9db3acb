"""Every token of the prompt with the fate of its slots in the layer looked at."""

from __future__ import annotations

import numpy as np

from macs.trace import DROPPED, KEPT, REROUTED
from macs.view.markup import FATE_CLASS, FATE_WORD, esc
from macs.view.select_token import visible
from macs.view.shown import Shown
from macs.view.words import Words


def render(shown: Shown, words: Words) -> str:
    """Return the text tokens in order as buttons; each run of patches stands as one chip that counts them."""
    trace, layer = shown.policy, shown.layers[2]
    tokens = trace.tokens
    parts, patches = [], 0
    for t in range(len(tokens)):
        if not tokens.valid_T[t]:
            continue
        if tokens.visual_T[t]:
            patches += 1
            continue
        parts += [_patches(patches, words)] if patches else []
        patches = 0
        parts.append(_chip(t, tokens.text_T[t], layer.decision.status_TC[t, : trace.top_k], words))
    parts += [_patches(patches, words)] if patches else []
    return f'<p class="fn">{esc(sentence(shown, words))}</p><div class="tok" data-rove="grid">{"".join(parts)}</div>'


def sentence(shown: Shown, words: Words) -> str:
    """Say how many text tokens there are and what became of their pairs."""
    layer, tokens = shown.layers[2], shown.policy.tokens
    text_T = tokens.valid_T & ~tokens.visual_T
    status = layer.decision.status_TC[text_T, : shown.policy.top_k]
    counts = {name: int((status == fate).sum()) for name, fate in (("a", KEPT), ("b", REROUTED), ("c", DROPPED))}
    last = shown.policy.top_k - 1
    return words("tok_s", n=int(text_T.sum()), l=shown.number, last=last, name=words.inside(shown.policy.policy.preset), **counts)


def _patches(count: int, words: Words) -> str:
    return f'<span class="patches">{esc(words("n_patches", n=count))}</span>'


def _chip(t: int, text: str, status_K: np.ndarray, words: Words) -> str:
    squares = "".join(f'<i class="{FATE_CLASS.get(int(s), "pat-k")}"></i>' for s in status_K)
    fates = ", ".join(words(FATE_WORD.get(int(s), "kept")) for s in status_K)
    label = words("token_alt", t=visible(text), fates=fates)
    return f'<button type="button" data-token="{t}" tabindex="-1" aria-label="{esc(label)}">{esc(visible(text))}<span>{squares}</span></button>'
