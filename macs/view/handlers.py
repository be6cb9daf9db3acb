"""What the page does at each event, as plain functions on a session; each returns the regions that changed."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any, Iterator, Mapping

import numpy as np

import numpy as np

from macs.engine.base import Engine, Request
from macs.engine.intake import open_image
from macs.view import curves, export, job, settings, shown
from macs.view.examples import Example
from macs.view.faults import field_of
from macs.view.header import READY, Status, progress
from macs.view.session import Session
from macs.view.words import Words

Changes = dict[str, str]
EN = Words("en")  # in which errors are raised; ``_fault`` says them in the session's language


def adjust(session: Session, values: Mapping[str, Any]) -> Changes:
    """Schedule the recorded scores again under the controls' values; a bad value leaves the page as it was, and is said."""
    with session.lock:
        try:
            session.wanted = settings.policy_of(values), values["baseline"], values["ep_size"]
            session.shown = shown.plan(session.shown, *session.wanted)
            session.status = session.status if session.running else READY
        except ValueError as error:
            session.status = _fault(session, error)
        return session.changes()


def _fault(session: Session, error: ValueError, field: str = "") -> Status:
    """Return the status that says an error at the field that caused it."""
    return Status("error", session.words.sentence(str(error)), field=field or field_of(str(error)))


def look(session: Session, **where: Any) -> Changes:
    """Turn to another layer, baseline or focus: ``layer``, ``beside`` or ``focus``."""
    with session.lock:
        session.shown = replace(session.shown, **_possible(session.shown, where))
        return session.changes()


def look_at(session: Session, image: int, x: float, y: float) -> Changes:
    """Turn to the patch of a picture at a place, given as fractions of its width and height; nothing where no patch is."""
    tokens = session.shown.policy.tokens
    x0, y0, x1, y1 = tokens.cell_T4.T
    with np.errstate(invalid="ignore"):  # a token without a place is NaN, and nowhere
        there = np.nonzero((tokens.image_T == image) & (x0 <= x) & (x < x1) & (y0 <= y) & (y < y1))[0]
    return look(session, focus=("token", int(there[-1]))) if len(there) else {}


def equalize(session: Session) -> Changes:
    """Give the baseline the γ at which it takes the policy's time, from its own run's scores."""
    with session.lock:
        session.shown = shown.equalized(session.shown)
        return session.changes()


def _possible(now: shown.Shown, where: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``where`` without what this run does not have; a click may arrive after another run replaced the one clicked."""
    trace = now.policy
    exists = {"token": np.flatnonzero(trace.tokens.valid_T).tolist(), "expert": range(trace.num_experts), "rank": range(trace.ep_size)}  # padding has no pairs
    focus = where.get("focus", now.focus)
    possible = {
        "layer": where.get("layer", now.layer) in range(len(trace.layers)),
        "beside": where.get("beside", now.beside) in shown.BASELINES,
        "focus": focus is None or (focus[0] in exists and focus[1] in exists[focus[0]]),
    }
    return {name: value for name, value in where.items() if possible[name]}


def speak(session: Session, lang: str) -> Changes:
    """Change the language."""
    with session.lock:
        session.lang = lang
        return session.changes()


def open_example(session: Session, example: Example, ep_size: int) -> tuple[Changes, bool]:
    """Show a recorded example; returns the changes and whether it could be read."""
    try:
        comparison = example.load()
    except ValueError:
        return session.status_changes(Status("error", session.words("st_example"))), False
    with session.lock:
        session.shown = shown.placed(shown.open_run(comparison, "recorded", beside=session.shown.beside, example=example.name), ep_size)
        session.status = session.status if session.running else READY
        return session.changes(), True


def restore(session: Session, query: Mapping[str, str]) -> None:
    """Put the settings and the view of a link onto the example that it names; what it holds wrongly is left out."""
    values = settings.values_of(*shown.settings_of(session.shown.now))
    where: dict[str, Any] = {}
    if query.get("layer", "").isdigit():
        where["layer"] = int(query["layer"])
    if "beside" in query:
        where["beside"] = query["beside"]
    kind, _, index = query.get("focus", "").partition("-")
    if index.isdigit():
        where["focus"] = kind, int(index)
    adjust(session, export.settings_from(query, values))
    look(session, **where)


def open_file(session: Session, path: str) -> tuple[Changes, bool]:
    """Show the run in a trace file; returns the changes and whether it could be read."""
    try:
        content = shown.open_run(export.opened(path), "file", beside=session.shown.beside)
    except ValueError as error:
        return session.status_changes(_fault(session, error, "open-trace")), False
    with session.lock:
        session.shown = content
        session.status = session.status if session.running else READY
        return session.changes(), True


def draw_curves(session: Session) -> Changes:
    """Compute the curves over γ if those at hand are of other settings; gives up when the settings change meanwhile."""
    content = session.shown
    if not content.scored or (session.curves and session.curves.fit(content)):
        return {}
    new = curves.curves(content, cancelled=lambda: session.shown.now is not content.now)
    with session.lock:
        if new is None or not new.fit(session.shown):
            return {}
        session.curves = new
        return session.changes()


def start(
    session: Session, engine: Engine, line: job.Line, picture: str | None, prompt: str, values: Mapping[str, Any], *, choose: bool = False
) -> Iterator[Changes]:
    """Run the model four times; yields progress, then the new page, or one sentence while the last run stays.

    With ``choose`` it first runs other policies too, and takes the one that changes the answer least in the time of the
    policy on the page.
    """
    with session.lock:
        if session.running:  # a second press: the first run goes on
            return
        session.running, session.stop = True, threading.Event()
    try:
        order, notices = _order(session, picture, prompt, values)
        if choose:
            gamma = next(field for field in settings.SLIDERS if field.name == "gamma")
            order = replace(order, target=session.shown.policy.straggler(), gammas=(gamma.low, gamma.high))
    except ValueError as error:
        session.running = False
        yield session.status_changes(_fault(session, error))
        return
    try:
        yield session.status_changes(Status("running", session.words("st_start")))
        for outcome in job.run(engine, line, order, session.stop):
            if isinstance(outcome, int) or not outcome.done.is_set():
                yield session.status_changes(_under_way(session, outcome))
    finally:
        session.running = False
    if choose and outcome.comparison is not None:
        session.wanted = outcome.comparison.policy.policy, order.baseline, order.ep_size
    about = {"seconds": outcome.seconds, "measured": engine.info.measured, "notices": notices}
    yield _end(session, outcome, about)


def _order(session: Session, picture: str | None, prompt: str, values: Mapping[str, Any]) -> tuple[job.Order, tuple[str, ...]]:
    if not (prompt or "").strip():
        raise ValueError(EN("err_prompt"))
    session.wanted = settings.policy_of(values), values["baseline"], values["ep_size"]
    length = settings.answer_length(values["max_new_tokens"])
    opened = open_image(picture) if picture else None
    request = Request(prompt, opened.image if opened else None, length)
    return job.Order(request, *session.wanted), opened.notices if opened else ()


def _under_way(session: Session, outcome: int | job.Outcome) -> Status:
    words = session.words
    if session.stop.is_set():
        return Status("running", words("st_stopping"))
    if isinstance(outcome, int):
        return Status("running", words("st_queue", n=outcome) if outcome else words("st_start"))
    return progress(outcome.step, words)


def _end(session: Session, outcome: job.Outcome, about: Mapping[str, Any]) -> Changes:
    words = session.words
    if outcome.comparison is None:
        if outcome.stopped:
            return session.status_changes(Status("note", words("st_stopped")))
        text = words.sentence(outcome.error) if outcome.error else words("st_crash", what=outcome.crash)
        return session.status_changes(Status("error", f"{text} {words('st_kept')}", field=field_of(outcome.error)))
    with session.lock:
        session.status = READY
        before = session.shown
        session.shown = shown.open_run(outcome.comparison, "live", beside=before.beside, **about)
        if len(before.policy.layers) == len(session.shown.policy.layers):  # stay where the reader looks
            session.shown = shown.at_layer(session.shown, before.layer)
        session.shown = shown.plan(session.shown, *session.wanted)  # the controls may have moved meanwhile
        return session.changes()


def stop(session: Session) -> None:
    """Ask the run under way to end; nothing of it is kept."""
    session.stop.set()
