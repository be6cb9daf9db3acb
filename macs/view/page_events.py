"""The page's events: which control calls which handler, and how its result reaches the components."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Sequence

import gradio as gr

from macs.engine.base import Engine
from macs.view import export, handlers
from macs.view.job import Line
from macs.view.page_texts import beside_label, page_texts, text_components
from macs.view.session import ALL, Session, render
from macs.view.settings import AXES, FIELDS, axes_of, divisors, policy_of, values_of
from macs.view.shown import placed, settings_of
from macs.view.words import LANGUAGES, best_language

if TYPE_CHECKING:
    from macs.view.examples import Example
    from macs.view.page import Parts

NAMES = [field.name for field in FIELDS]
QUIET = {"show_progress": "hidden", "api_visibility": "private"}
AT_ONCE = {"queue": False, "trigger_mode": "always_last", **QUIET}
HERE = Path(__file__).parent

# Button -> file name and what to write into it.
DOWNLOADS: dict[str, tuple[str, Callable[[Session], bytes]]] = {
    "exp_trace": ("macs-run.zip", lambda session: export.traces(session.shown)),
    "exp_pairs": ("macs-pairs.csv", lambda session: export.pairs_csv(session.shown).encode("utf-8-sig")),
    "exp_set": ("macs-settings.json", lambda session: export.settings_json(session.shown).encode()),
    "exp_html": ("macs-page.html", lambda session: _report(session).encode()),
}


def sent(changes: handlers.Changes) -> list[Any]:
    """Return an output for every region: its new markup, or nothing to do."""
    return [changes.get(name, gr.skip()) for name in ALL]


def wire(page: gr.Blocks, parts: Parts, engine: Engine, line: Line, examples: Sequence[Example]) -> None:
    """Connect every event of the page."""
    wiring = _Wiring(parts)
    _wire_settings(parts, wiring, engine)
    _wire_looking(parts, wiring)
    _wire_content(page, parts, wiring, engine, examples)
    _wire_run(parts, wiring, engine, line)
    _wire_downloads(parts)


class _Wiring:
    """The lists of components that many events share, and the curves that follow a redraw without holding it up."""

    def __init__(self, parts: Parts) -> None:
        self.session = parts.session
        self.regions = [parts.regions[name] for name in ALL]
        self.controls = [parts.controls[name] for name in NAMES]

    def curves_after(self, event: Any) -> Any:
        """Draw the curves over γ once ``event`` is done."""
        return event.then(lambda session: sent(handlers.draw_curves(session)), self.session, self.regions, **AT_ONCE)


def _wire_settings(parts: Parts, wiring: _Wiring, engine: Engine) -> None:
    def adjust(session: Session, *values: Any) -> list[Any]:
        return sent(handlers.adjust(session, dict(zip(NAMES, values))))

    def choose_preset(name: str) -> list[Any]:
        return [gr.skip()] * len(AXES) if name == "custom" else list(axes_of(name))

    def name_preset(*values: Any) -> Any:
        try:
            return policy_of(dict(zip(NAMES, values))).preset
        except ValueError:  # said by ``adjust``
            return gr.skip()

    def reset(session: Session) -> list[Any]:
        values = values_of(*settings_of(placed(session.shown, engine.info.ep_size).run))
        return [values[name] for name in NAMES]

    def relabel_beside(session: Session, baseline: str) -> Any:
        return gr.update(label=beside_label(baseline, session.words))

    def adjusting(event: Any) -> None:
        wiring.curves_after(event(adjust, [parts.session, *wiring.controls], wiring.regions, **AT_ONCE))

    axes = [parts.controls[axis] for axis in AXES]
    for field in FIELDS:
        control = parts.controls[field.name]
        event = control.input if field.kind in ("choice", "menu") else control.change
        if field.name == "preset":
            adjusting(event(choose_preset, control, axes, **AT_ONCE).then)
        elif field.name in AXES:
            adjusting(event(name_preset, wiring.controls, parts.controls["preset"], **AT_ONCE).then)
        elif field.name != "max_new_tokens":
            adjusting(event)
    parts.controls["baseline"].input(relabel_beside, [parts.session, parts.controls["baseline"]], parts.beside, **AT_ONCE)
    adjusting(parts.reset.click(reset, parts.session, wiring.controls, **AT_ONCE).then)


def _wire_looking(parts: Parts, wiring: _Wiring) -> None:
    def layer(session: Session, event: gr.EventData) -> list[Any]:
        return sent(handlers.look(session, layer=int(event.value)))

    def focus(session: Session, event: gr.EventData) -> list[Any]:
        return sent(handlers.look(session, focus=None if event.kind == "none" else (str(event.kind), int(event.value))))

    def cell(session: Session, event: gr.EventData) -> list[Any]:
        return sent(handlers.look(session, layer=int(event.layer), focus=(str(event.kind), int(event.value))))

    def place(session: Session, event: gr.EventData) -> list[Any]:
        return sent(handlers.look_at(session, int(event.image), float(event.x), float(event.y)))

    def equal(session: Session) -> list[Any]:
        return [*sent(handlers.equalize(session)), session.shown.beside]

    def beside(session: Session, value: str) -> list[Any]:
        return sent(handlers.look(session, beside=value))

    parts.bus.resync(lambda session: sent(session.everything()), parts.session, wiring.regions, **AT_ONCE)
    parts.bus.layer(layer, parts.session, wiring.regions, **AT_ONCE)
    parts.bus.focus(focus, parts.session, wiring.regions, **AT_ONCE)
    parts.bus.cell(cell, parts.session, wiring.regions, **AT_ONCE)
    parts.bus.place(place, parts.session, wiring.regions, **AT_ONCE)
    parts.bus.equal(equal, parts.session, [*wiring.regions, parts.beside], **AT_ONCE)
    parts.beside.input(beside, [parts.session, parts.beside], wiring.regions, **AT_ONCE)


def _wire_content(page: gr.Blocks, parts: Parts, wiring: _Wiring, engine: Engine, examples: Sequence[Example]) -> None:
    inputs = [parts.picture, parts.prompt, parts.beside, *wiring.controls]
    texts = text_components(parts)

    def fields(session: Session) -> list[Any]:
        """Return the controls' values, and for the ranks the sizes that divide this run's experts."""
        values = values_of(*settings_of(session.shown.now))
        sizes = [(str(size), size) for size in divisors(session.shown.policy.num_experts)]
        values["ep_size"] = gr.update(value=values["ep_size"], choices=sizes)
        return [session.shown.beside, *[values[name] for name in NAMES]]

    def everything(session: Session, changes: handlers.Changes, picture: Any, prompt: Any) -> list[Any]:
        return [*sent(changes), picture, prompt, *fields(session), *page_texts(session, examples)]

    def opened(session: Session, chosen: Example) -> list[Any]:
        changes, read = handlers.open_example(session, chosen, engine.info.ep_size)
        if not read:
            return [*sent(changes), *[gr.skip()] * (len(inputs) + len(texts))]
        return everything(session, changes, chosen.picture, chosen.prompt)

    def example(session: Session, event: gr.EventData) -> list[Any]:
        return opened(session, examples[int(event.value)])

    def trace_file(session: Session, path: str) -> list[Any]:
        changes, read = handlers.open_file(session, path)
        if not read:
            return [*sent(changes), *[gr.skip()] * (len(inputs) + len(texts))]
        return everything(session, changes, gr.skip(), session.shown.run.policy.prompt)

    def language(session: Session, event: gr.EventData) -> list[Any]:
        changes = handlers.speak(session, event.value if event.value in LANGUAGES else LANGUAGES[0])
        return [*sent(changes), *page_texts(session, examples)]

    def arrive(session: Session, request: gr.Request) -> list[Any]:
        """Show what the address asks for, in the browser's language; a plain visit in the first language changes nothing."""
        query = dict(request.query_params)
        lang, before = query.get("lang", ""), session.sent
        session.lang = lang if lang in LANGUAGES else best_language(request.headers.get("accept-language", ""))
        chosen = next((e for e in examples if e.name == query.get("example")), None)
        if chosen is not None:
            handlers.open_example(session, chosen, engine.info.ep_size)
            handlers.restore(session, query)
        session.sent = before  # what the tab has: the page as it was built
        if chosen is not None:
            return everything(session, session.changes(), chosen.picture, chosen.prompt)
        texts_now = page_texts(session, examples) if session.lang != LANGUAGES[0] else [gr.skip()] * len(texts)
        return [*sent(session.changes()), *[gr.skip()] * len(inputs), *texts_now]  # the controls may have been moved already

    everywhere = [*wiring.regions, *inputs, *texts]
    wiring.curves_after(parts.bus.example(example, parts.session, everywhere, **AT_ONCE))
    wiring.curves_after(parts.trace_file.upload(trace_file, [parts.session, parts.trace_file], everywhere, **QUIET))
    parts.bus.language(language, parts.session, [*wiring.regions, *texts], **AT_ONCE)
    wiring.curves_after(page.load(arrive, parts.session, everywhere, **AT_ONCE))


def _wire_run(parts: Parts, wiring: _Wiring, engine: Engine, line: Line) -> None:
    still = [gr.skip()] * len(ALL)

    def run(session: Session, picture: str | None, prompt: str, *values: Any):
        yield [*still, gr.update(interactive=False), gr.update(interactive=True)]
        for changes in handlers.start(session, engine, line, picture, prompt, dict(zip(NAMES, values))):
            yield [*sent(changes), gr.skip(), gr.skip()]
        yield [*still, gr.update(interactive=True), gr.update(interactive=False)]

    inputs = [parts.session, parts.picture, parts.prompt, *wiring.controls]
    outputs = [*wiring.regions, parts.run, parts.stop]
    def choose(session: Session, picture: str | None, prompt: str, *values: Any):
        kept = [gr.skip()] * len(NAMES)
        yield [*still, gr.update(interactive=False), gr.update(interactive=True), *kept]
        for changes in handlers.start(session, engine, line, picture, prompt, dict(zip(NAMES, values)), choose=True):
            yield [*sent(changes), gr.skip(), gr.skip(), *kept]
        length = values[NAMES.index("max_new_tokens")]
        chosen = values_of(*session.wanted, length) if session.wanted else dict(zip(NAMES, values))
        yield [*still, gr.update(interactive=True), gr.update(interactive=False), *[chosen[name] for name in NAMES]]

    wiring.curves_after(gr.on([parts.run.click, parts.prompt.submit], run, inputs, outputs, concurrency_limit=None, **QUIET))
    wiring.curves_after(parts.choose.click(choose, inputs, [*outputs, *wiring.controls], concurrency_limit=None, **QUIET))
    parts.stop.click(handlers.stop, parts.session, None, **AT_ONCE)  # the run's own stream says that it stops


def _wire_downloads(parts: Parts) -> None:
    fetch = "() => setTimeout(() => document.querySelector('#parcel').click(), 100)"  # once the new address is in the page

    def packing(name: str, content: Callable[[Session], bytes]) -> Callable[[Session], str]:
        def pack(session: Session) -> str:
            folder = Path(parts.parcel.GRADIO_CACHE) / uuid.uuid4().hex  # swept with the uploads
            folder.mkdir(parents=True)
            (folder / name).write_bytes(content(session))
            return str(folder / name)

        return pack

    for key, (name, content) in DOWNLOADS.items():
        parts.downloads[key].click(packing(name, content), parts.session, parts.parcel, **QUIET).then(None, js=fetch, **QUIET)


def _report(session: Session) -> str:
    regions = render(session.shown, session.words, curves=session.curves)
    return export.report(regions, (HERE / "page.css").read_text("utf-8"), session.words)
