"""Texts of the components that gradio draws itself, in the session's language."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Sequence

import gradio as gr

from macs.view.markup import esc
from macs.view.page_fields import relabel
from macs.view.session import Session
from macs.view.settings import divisors
from macs.view.shown import BASELINES, settings_of
from macs.view.words import Words

if TYPE_CHECKING:
    from macs.view.examples import Example
    from macs.view.page import Parts


def beside_choices(words: Words) -> list[tuple[str, str]]:
    """Return the two baselines as (text, value)."""
    return [(words(name), name) for name in BASELINES]


def beside_label(baseline: str, words: Words) -> str:
    """Return the label of that choice, which names the baseline's policy."""
    return words("compare", base=words.policy(baseline))


def text_components(parts: Parts) -> list[gr.components.Component]:
    """Return the components whose texts ``page_texts`` gives, in its order."""
    buttons = [parts.run, parts.stop, parts.choose, parts.reset, *parts.downloads.values()]
    return [*parts.controls.values(), parts.beside, parts.picture, parts.prompt, *buttons, parts.trace_file, *parts.tabs.values(), parts.examples, parts.found]


def page_texts(session: Session, examples: Sequence[Example]) -> list[Any]:
    """Return the updates of ``text_components``."""
    from macs.view.page_events import DOWNLOADS

    words = session.words
    baseline = settings_of(session.shown.now)[1]
    buttons = ["run", "stop", "set_tune", "set_reset", *DOWNLOADS]
    return [
        *relabel(words, divisors(session.shown.policy.num_experts)),
        gr.update(choices=beside_choices(words), label=beside_label(baseline, words)),
        gr.update(label=words("image"), placeholder=words("drop_image")),
        gr.update(label=words("prompt")),
        *[gr.update(value=words(key)) for key in buttons],
        gr.update(label=words("exp_open")),
        *[gr.update(label=words(key)) for key in TABS],
        gr.update(value=example_strip(examples, session.shown.example, words)),
        gr.update(value=found_line(session.found, words)),
    ]


TABS = {  # word of its title, also its id -> the regions in it, from top to bottom
    "tab_tokens": ("tokens",),
    "tab_sides": ("difference", "layers"),
    "tab_results": ("results",),
    "tab_export": ("export",),
    "tab_method": ("method",),
}


def example_strip(examples: Sequence[Example], current: str, words: Words) -> str:
    """Return the example buttons; the one on the screen is pressed."""
    buttons = "".join(
        f'<button type="button" class="e" data-send="example" data-value="{i}" aria-pressed="{str(example.name == current).lower()}" '
        f'title="{esc(example.prompt)}" aria-label="{esc(example.prompt)}">{_thumbnail(example)}</button>'
        for i, example in enumerate(examples)
    )
    return f'<div class="exs"><small>{esc(words("examples"))}</small>{buttons}</div>'


def found_line(found: str, words: Words) -> str:
    """Return the engine's sentence on the hardware that it runs on."""
    return f'<p class="notice">{esc(words.sentence(found))}</p>'


def _thumbnail(example: Example) -> str:
    if example.picture is None:
        return "<span>T</span>"
    return f'<img src="data:image/png;base64,{base64.b64encode(example.thumbnail()).decode("ascii")}" alt="">'
