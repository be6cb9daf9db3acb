"""The page's events: which control calls which handler, and how its result reaches the components."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Sequence

import gradio as gr

from macs.config import PRESETS
from macs.engine.base import Engine
from macs.view import handlers
from macs.view.job import Line
from macs.view.page_fields import relabel
from macs.view.session import ALL, Session
from macs.view.settings import AXES, FIELDS, divisors, policy_of, values_of
from macs.view.shown import BASELINES, settings_of
from macs.view.words import LANGUAGES, Words, best_language

if TYPE_CHECKING:
    from macs.view.examples import Example
    from macs.view.page import Parts

NAMES = [field.name for field in FIELDS]
QUIET = {"show_progress": "hidden", "api_visibility": "private"}
AT_ONCE = {"queue": False, "trigger_mode": "always_last", **QUIET}


def beside_choices(words: Words) -> list[tuple[str, str]]:
    """Return the two baselines as (text, value)."""
    return [(words(name), name) for name in BASELINES]


def beside_label(values: dict[str, Any], words: Words) -> str:
    """Return the label of that choice, which names the baseline's policy."""
    return words("compare", base=words.policy(values["baseline"]))


def sent(changes: handlers.Changes) -> list[Any]:
    """Return an output for every region: its new markup, or nothing to do."""
    return [changes.get(name, gr.skip()) for name in ALL]


def wire(page: gr.Blocks, parts: Parts, engine: Engine, examples: Sequence[Example]) -> None:
    """Connect every event of the page."""
    regions = [parts.regions[name] for name in ALL]
    controls = [parts.controls[name] for name in NAMES]
    _wire_settings(parts, regions, controls)
    _wire_looking(page, parts, regions, controls, examples)
    _wire_run(parts, regions, controls, engine)


def _wire_settings(parts: Parts, regions: list, controls: list) -> None:
    def adjust(session: Session, *values: Any) -> list[Any]:
        return sent(handlers.adjust(session, dict(zip(NAMES, values))))

    def choose_preset(name: str) -> list[Any]:
        return [gr.skip()] * len(AXES) if name == "custom" else [PRESETS[name][axis] for axis in AXES]

    def name_preset(*values: Any) -> Any:
        try:
            return policy_of(dict(zip(NAMES, values))).preset
        except ValueError:  # said by ``adjust``
            return gr.skip()

    def reset(session: Session) -> list[Any]:
        values = values_of(*settings_of(session.shown.run))
        return [values[name] for name in NAMES]

    axes = [parts.controls[axis] for axis in AXES]
    moving = {field.name for field in FIELDS if field.kind != "choice"}
    for name, control in parts.controls.items():
        event = control.change if name in moving else control.input
        if name == "preset":
            event(choose_preset, control, axes, **AT_ONCE).then(adjust, [parts.session, *controls], regions, **AT_ONCE)
        elif name in AXES:
            event(name_preset, controls, parts.controls["preset"], **AT_ONCE).then(adjust, [parts.session, *controls], regions, **AT_ONCE)
        elif name != "max_new_tokens":
            event(adjust, [parts.session, *controls], regions, **AT_ONCE)
    parts.controls["baseline"].input(_relabel_beside, [parts.session, parts.controls["baseline"]], parts.beside, **AT_ONCE)
    parts.reset.click(reset, parts.session, controls, **AT_ONCE).then(adjust, [parts.session, *controls], regions, **AT_ONCE)


def _relabel_beside(session: Session, baseline: str) -> Any:
    return gr.update(label=beside_label({"baseline": baseline}, session.words))


def _wire_looking(page: gr.Blocks, parts: Parts, regions: list, controls: list, examples: Sequence[Example]) -> None:
    from macs.view.page import example_strip

    texts = [*controls, parts.beside, parts.picture, parts.prompt, parts.run, parts.stop, parts.reset, parts.examples]

    def layer(session: Session, event: gr.EventData) -> list[Any]:
        return sent(handlers.look(session, layer=int(event.value)))

    def focus(session: Session, event: gr.EventData) -> list[Any]:
        where = None if event.kind == "none" else (str(event.kind), int(event.value))
        return sent(handlers.look(session, focus=where))

    def cell(session: Session, event: gr.EventData) -> list[Any]:
        return sent(handlers.look(session, layer=int(event.layer), focus=("expert", int(event.value))))

    def beside(session: Session, value: str) -> list[Any]:
        return sent(handlers.look(session, beside=value))

    def speak(session: Session, lang: str) -> list[Any]:
        changes = handlers.speak(session, lang)
        return [*sent(changes), *_texts(session, examples, example_strip)]

    def language(session: Session, event: gr.EventData) -> list[Any]:
        return speak(session, event.value if event.value in LANGUAGES else LANGUAGES[0])

    def arrive(session: Session, request: gr.Request) -> list[Any]:
        asked = request.query_params.get("lang")
        return speak(session, asked if asked in LANGUAGES else best_language(request.headers.get("accept-language", "")))

    def example(session: Session, event: gr.EventData) -> list[Any]:
        chosen = examples[int(event.value)]
        changes, read = handlers.open_example(session, chosen)
        if not read:
            return [*sent(changes), gr.skip(), gr.skip(), gr.skip(), *[gr.skip()] * len(controls)]
        values = values_of(*settings_of(session.shown.run))
        session.example = chosen.name
        strip = example_strip(examples, chosen.name, session.words)
        return [*sent(changes), chosen.picture, chosen.prompt, strip, *[_set(name, values, session) for name in NAMES]]

    bus = parts.bus
    bus.layer(layer, parts.session, regions, **AT_ONCE)
    bus.focus(focus, parts.session, regions, **AT_ONCE)
    bus.cell(cell, parts.session, regions, **AT_ONCE)
    bus.example(example, parts.session, [*regions, parts.picture, parts.prompt, parts.examples, *controls], **AT_ONCE)
    bus.language(language, parts.session, [*regions, *texts], **AT_ONCE)
    parts.beside.input(beside, [parts.session, parts.beside], regions, **AT_ONCE)
    page.load(arrive, parts.session, [*regions, *texts], **AT_ONCE)


def _set(name: str, values: dict[str, Any], session: Session) -> Any:
    if name != "ep_size":
        return values[name]
    sizes = divisors(session.shown.policy.num_experts)
    return gr.update(value=values[name], choices=[(str(size), size) for size in sizes])


def _texts(session: Session, examples: Sequence[Example], example_strip) -> list[Any]:
    words = session.words
    baseline = {"baseline": settings_of(session.shown.now)[1]}
    return [
        *relabel(words, divisors(session.shown.policy.num_experts)),
        gr.update(choices=beside_choices(words), label=beside_label(baseline, words)),
        gr.update(label=words("image"), placeholder=words("drop_image")),
        gr.update(label=words("prompt")),
        gr.update(value=words("run")),
        gr.update(value=words("stop")),
        gr.update(value=words("set_reset")),
        gr.update(value=example_strip(examples, session.example, words)),
    ]


def _wire_run(parts: Parts, regions: list, controls: list, engine: Engine) -> None:
    line = Line()

    def run(session: Session, picture: str | None, prompt: str, *values: Any):
        yield [*[gr.skip()] * len(regions), gr.update(interactive=False), gr.update(interactive=True)]
        for changes in handlers.start(session, engine, line, picture, prompt, dict(zip(NAMES, values))):
            yield [*sent(changes), gr.skip(), gr.skip()]
        yield [*[gr.skip()] * len(regions), gr.update(interactive=True), gr.update(interactive=False)]

    def stop(session: Session) -> list[Any]:
        return sent(handlers.stop(session))

    inputs = [parts.session, parts.picture, parts.prompt, *controls]
    gr.on([parts.run.click, parts.prompt.submit], run, inputs, [*regions, parts.run, parts.stop], concurrency_limit=None, **QUIET)
    parts.stop.click(stop, parts.session, regions, **AT_ONCE)
