"""Pieces that the selection's kinds share: title, names of the two policies, tables that scroll."""

from __future__ import annotations

from macs.view.markup import esc
from macs.view.shown import Shown
from macs.view.words import Words

MANY_LAYERS = 12  # above it the tables scroll sideways


def head(title: str, words: Words) -> str:
    """Return the title with the button that clears the selection."""
    return f'<h2>{esc(title)}<button type="button" class="tool" data-focus="none">{esc(words("clear"))}</button></h2>'


def names(shown: Shown, words: Words) -> dict[str, str]:
    """Return how the baseline and the policy read inside a sentence."""
    return {"base": words.inside(shown.base.policy.preset), "name": words.inside(shown.policy.policy.preset)}


def layer_heads(shown: Shown, words: Words) -> str:
    """Return a column head per layer, its number alone on a phone."""
    return "".join(
        f'<th scope="col"><span class="wide">{esc(words("layer_n", l=layer.layer))}</span><span class="narrow" aria-hidden="true">{layer.layer}</span></th>'
        for layer in shown.policy.layers
    )


def table_class(shown: Shown, *names: str) -> str:
    """Return the class of a table with a column per layer."""
    return " ".join(("ft", *names, *(["many"] if len(shown.policy.layers) > MANY_LAYERS else [])))


def scrolled(table: str, label: str) -> str:
    """Return a table that scrolls sideways where it is too wide, by keyboard too."""
    return f'<div class="ftw" tabindex="0" role="group" aria-label="{esc(label)}">{table}</div>'
