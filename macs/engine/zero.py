"""ZeroGPU, the Spaces hardware that lends one GPU for one call: the engine of one process, whose runs are such calls.

A call happens in a process forked for it. A request goes in pickled; the steps of the run and its end come out.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from dataclasses import replace
from queue import SimpleQueue
from typing import Any, Callable, Iterator

from macs.config import Policy
from macs.engine.base import Engine, EngineFailure, Hooks, Request, Run, Stopped

log = logging.getLogger(__name__)
CALL_SECONDS = 60  # asked for each run; a visitor whose daily share is smaller is told so


def zero_gpu() -> bool:
    """Return whether this process runs on a Space with ZeroGPU."""
    return os.environ.get("SPACES_ZERO_GPU", "").lower() in ("1", "t", "true")


def lend(model: str, ranks: str | int = "auto", **options: Any) -> ZeroEngine:
    """Return the engine of ``model`` on ZeroGPU; raises ValueError on more ranks than the one GPU of a call."""
    if str(ranks) not in ("auto", "1"):
        raise ValueError(f"ranks is {ranks!r}, but ZeroGPU lends one GPU a call; use auto or 1, or hardware with several GPUs.")
    import spaces  # before CUDA is touched: from here on torch acts as if a GPU were there

    from macs.engine.local import LocalEngine

    return ZeroEngine(LocalEngine(model, device="cuda", **options), spaces.GPU)


class ZeroEngine:
    """Runs ``engine`` in calls that hold a GPU; ``gpu`` is the decorator of the package ``spaces``."""

    def __init__(self, engine: Engine, gpu: Callable[..., Any]) -> None:
        self._engine = engine
        self._call = gpu(duration=CALL_SECONDS)(_steps(engine))  # before launch, when Spaces looks for such functions
        self._lock = threading.Lock()
        self.info = replace(engine.info, lent=True)

    def run(self, request: Request, policy: Policy, *, ep_size: int | None = None, reference: Run | None = None, hooks: Hooks = Hooks()) -> Run:
        """Return one run; see ``macs.engine.base.Engine.run``. Raises EngineFailure if the call was refused or broke."""
        if hooks.stop.is_set():
            raise Stopped()
        light = reference and replace(reference, trace=None)  # KL needs the answer alone, and what goes in is pickled
        with self._lock:
            steps = self._call(request, policy, ep_size, light)
            try:
                return self._follow(steps, hooks)
            finally:
                steps.close()  # a run that was stopped ends at its next step

    def close(self) -> None:
        """Free the model."""
        self._engine.close()

    def _follow(self, steps: Iterator[tuple[str, Any]], hooks: Hooks) -> Run:
        kind, value = "ended", None
        try:
            for kind, value in steps:
                if kind == "progress":
                    hooks.progress(value)
                    if hooks.stop.is_set():
                        raise Stopped()
        except Stopped:
            raise
        except Exception as error:  # of ``spaces``: no GPU is free, the visitor's share is used up, the call took too long
            said = re.sub("<[^>]*>", "", str(getattr(error, "message", error)))  # Spaces puts links into it
            first = next(iter(said.splitlines()), "").strip().rstrip(".") or type(error).__name__
            raise EngineFailure(f"ZeroGPU ended the call: {first}.") from error
        if kind == "refused":
            raise ValueError(value)
        if kind != "done":
            raise EngineFailure(f"The run failed on the GPU ({value or kind}); try again.")
        return value


def _steps(engine: Engine) -> Callable[..., Iterator[tuple[str, Any]]]:
    """Return ``engine.run`` as a generator of its steps: every exception becomes a value, for only values come back whole."""

    def steps(request: Request, policy: Policy, ep_size: int | None, reference: Run | None) -> Iterator[tuple[str, Any]]:
        told: SimpleQueue[tuple[str, Any]] = SimpleQueue()
        stop = threading.Event()

        def work() -> None:
            hooks = Hooks(lambda step: told.put(("progress", step)), stop)
            try:
                told.put(("done", engine.run(request, policy, ep_size=ep_size, reference=reference, hooks=hooks)))
            except ValueError as error:
                told.put(("refused", str(error)))
            except Exception as error:  # Stopped too, which nobody waits for any more
                if not isinstance(error, Stopped):
                    log.exception("A run failed.")
                told.put(("failed", type(error).__name__))

        worker = threading.Thread(target=work, daemon=True, name="macs-run")
        worker.start()
        try:
            while (step := told.get())[0] == "progress":
                yield step
            yield step
        finally:
            stop.set()
            worker.join()

    return steps
