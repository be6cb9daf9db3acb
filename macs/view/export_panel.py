"""The part of the export tab that is text: what the browser makes itself, the link, the script, what to cite."""

from __future__ import annotations

from macs.view import export
from macs.view.markup import esc
from macs.view.shown import Shown
from macs.view.words import Words

TAKES = (("png", "exp_png"), ("svg", "exp_svg"), ("link", "exp_link"))  # page.js acts on data-take


def render(shown: Shown, words: Words) -> str:
    """Return buttons, script and citation."""
    query = export.link(shown)
    buttons = "".join(
        f'<button type="button" class="take" data-take="{kind}" data-link="{esc(query)}" data-done="{esc(words("exp_copied"))}">{esc(words(key))}</button>'
        for kind, key in TAKES
    )
    return (
        f'<div class="takes">{buttons}</div><h3>{esc(words("exp_py"))} <small>{esc(words("exp_py_s"))}</small></h3>'
        f'<pre tabindex="0"><code>{esc(export.script(shown))}</code></pre><h3>{esc(words("exp_cite"))}</h3><p>{esc(words("cite_text"))}</p>'
    )
