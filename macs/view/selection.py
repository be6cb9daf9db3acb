"""One token, expert or rank followed through every layer, and where the other views must mark it.

The strip carries ``data-marks``, from which page.js outlines the same thing in every view.
"""

from __future__ import annotations

import json

from macs.view.markup import esc
from macs.view.select_group import expert, rank
from macs.view.select_token import token
from macs.view.shown import Shown
from macs.view.words import Words

KINDS = {"token": token, "expert": expert, "rank": rank}


def render(shown: Shown, words: Words) -> str:
    """Return the strip for the focus."""
    if shown.focus is None:
        return f'<div class="strip none" data-marks="{{}}"><p>{esc(words("nothing"))}</p></div>'
    kind, index = shown.focus
    if kind == "token" and not shown.scored:
        return f'<div class="strip none" data-marks="{{}}"><p>{esc(words("unscored_token"))}</p></div>'
    left, right, marks = KINDS[kind](index, shown, words)
    return f'<div class="strip" data-marks="{esc(json.dumps(marks))}"><div class="who">{left}</div><div class="more-of-it">{right}</div></div>'
