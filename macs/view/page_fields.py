"""The page's controls, built from the table in ``settings``, and their texts in either language."""

from __future__ import annotations

from typing import Any

import gradio as gr

from macs.view.settings import FIELDS, Field
from macs.view.words import Words


class PictureInput(gr.Image):
    """gr.Image that hands the file over unread: the intake says in one sentence what is wrong with it."""

    is_template = True  # gradio draws it as its parent

    def preprocess(self, payload: Any) -> str | None:
        return None if payload is None else payload.path


class NumberInput(gr.Number):
    """gr.Number that hands the value over unread: gradio lets NaN through and answers text with a traceback."""

    is_template = True

    def preprocess(self, payload: Any) -> Any:
        return payload


class NameInput(gr.Dropdown):
    """gr.Dropdown that hands the name over unread, for the same reason."""

    is_template = True

    def preprocess(self, payload: Any) -> Any:
        return payload


class BoundedSlider(gr.Slider):
    """gr.Slider that takes the nearer end for a number typed beyond it, as its box then shows, instead of failing."""

    is_template = True

    def preprocess(self, payload: float) -> float:
        return min(max(payload, self.minimum), self.maximum)


def build(field: Field, value: Any, words: Words, ep_sizes: tuple[int, ...]) -> gr.components.Component:
    """Return the control of one field."""
    common = {"label": words(field.word), "value": value, "elem_id": f"set-{field.name}", "interactive": True}
    if field.kind == "menu":
        return gr.Dropdown(choices=field.choices(words), info=words(f"{field.word}_i"), filterable=False, **common)
    if field.kind == "choice":
        return gr.Radio(choices=_choices(field, words, ep_sizes), info=words(f"{field.word}_i"), elem_classes="seg-radio", **common)
    if field.kind == "number":
        step = {"precision": 0} if field.step == 1 else {}
        return NumberInput(info=words(f"{field.word}_i"), **step, **common)
    info = {} if field.name in ("delta", "gamma") else {"info": words(f"{field.word}_i")}
    return BoundedSlider(field.low, field.high, step=field.step, **info, **common)


def _choices(field: Field, words: Words, ep_sizes: tuple[int, ...]) -> list[tuple[str, Any]]:
    return [(str(size), size) for size in ep_sizes] if field.name == "ep_size" else field.choices(words)


def relabel(words: Words, ep_sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    """Return the update of every control's texts."""
    updates = []
    for field in FIELDS:
        update = {"label": words(field.word)}
        if field.name not in ("delta", "gamma"):
            update["info"] = words(f"{field.word}_i")
        if field.kind in ("choice", "menu"):
            update["choices"] = _choices(field, words, ep_sizes)
        updates.append(gr.update(**update))
    return updates
