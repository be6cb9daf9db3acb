"""One press of Run: it waits its turn for the engine, runs in a thread, tells where it stands, and can be stopped."""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Iterator

from macs.config import Policy
from macs.engine.base import Engine, EngineFailure, Hooks, Progress, Request, Stopped
from macs.engine.compare import Comparison, compare
from macs.engine.tune import tune

log = logging.getLogger(__name__)
MOST = 20  # in the line, the one at the engine included; each holds one of the server's 40 threads, and sliders need some too
POLL = 0.1  # seconds between looks at a run under way


class Line:
    """People waiting for one engine, first come first served."""

    def __init__(self) -> None:
        self._tickets: deque[object] = deque()
        self._moved = threading.Condition()

    def join(self) -> object:
        """Return a ticket at the end of the line; raises ValueError if the line is full."""
        ticket = object()
        with self._moved:
            if len(self._tickets) >= MOST:
                raise ValueError(f"The queue is full: {len(self._tickets)} runs are in it. Try again in a minute.")
            self._tickets.append(ticket)
        return ticket

    def ahead(self, ticket: object) -> int:
        """Return how many stand before this ticket."""
        with self._moved:
            return self._tickets.index(ticket)

    def wait(self, ticket: object, stop: threading.Event) -> None:
        """Return when it is this ticket's turn; raises Stopped if ``stop`` is set first."""
        with self._moved:
            while self._tickets[0] is not ticket:
                if stop.is_set():
                    raise Stopped()
                self._moved.wait(POLL)

    def leave(self, ticket: object) -> None:
        """Give the ticket back."""
        with self._moved:
            self._tickets.remove(ticket)
            self._moved.notify_all()


@dataclass(frozen=True)
class Order:
    """What a press of Run asks for; with ``target``, the policy that changes the answer least at that straggler factor."""

    request: Request
    policy: Policy
    baseline: str
    ep_size: int
    target: float | None = None
    gammas: tuple[float, float] = (0.0, 0.0)  # inside which it is looked for


@dataclass
class Outcome:
    """How a run ended, or stands: exactly one of comparison, error and stopped once ``done``."""

    comparison: Comparison | None = None
    seconds: float = 0.0
    error: str = ""  # one plain sentence for the user
    crash: str = ""  # name of an error that is ours, not the user's
    stopped: bool = False
    step: Progress | None = None
    done: threading.Event = field(default_factory=threading.Event)


def run(engine: Engine, line: Line, order: Order, stop: threading.Event) -> Iterator[int | Outcome]:
    """Yield the number of people ahead while waiting, then the outcome as it grows, at least every ``POLL``; last, the end."""
    outcome = Outcome()
    try:
        ticket = line.join()
    except ValueError as error:
        outcome.error = str(error)
        outcome.done.set()
        yield outcome
        return
    context = contextvars.copy_context()  # gradio keeps in it who asks, which ZeroGPU wants to know
    worker = threading.Thread(target=context.run, args=(_work, engine, line, ticket, order, stop, outcome), daemon=True, name="macs-run")
    try:
        worker.start()
        while not outcome.done.wait(POLL):
            yield outcome if outcome.step else _ahead(line, ticket)
        yield outcome
    finally:
        if not outcome.done.is_set():  # the tab was closed
            stop.set()


def _ahead(line: Line, ticket: object) -> int:
    try:
        return line.ahead(ticket)
    except ValueError:  # the worker has just left the line
        return 0


def _work(engine: Engine, line: Line, ticket: object, order: Order, stop: threading.Event, outcome: Outcome) -> None:
    def report(step: Progress) -> None:
        outcome.step = step

    try:
        line.wait(ticket, stop)
        start = time.perf_counter()
        policy, hooks = order.policy, Hooks(report, stop)
        if order.target is not None:
            policy = tune(engine, [order.request], order.target, ep_size=order.ep_size, gammas=order.gammas, hooks=hooks)[0].policy
        outcome.comparison = compare(engine, order.request, policy, baseline=order.baseline, ep_size=order.ep_size, hooks=hooks)
        outcome.seconds = time.perf_counter() - start
    except Stopped:
        outcome.stopped = True
    except (ValueError, EngineFailure) as error:
        outcome.error = str(error)
    except Exception as error:  # a bug or the machine: the page must say so and stay usable
        log.exception("A run failed.")
        outcome.crash = type(error).__name__
    finally:
        line.leave(ticket)
        outcome.done.set()
