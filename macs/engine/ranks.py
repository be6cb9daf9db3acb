"""The engine of G real ranks: the experts are split over processes, and each rank's time is measured."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any, Callable, Protocol

from macs.config import Policy
from macs.engine import member
from macs.engine.base import EngineFailure, EngineInfo, Hooks, Request, Run, Stopped
from macs.engine.generation import mean_kl
from macs.model import check_ranks

START_TIMEOUT = 1800.0  # seconds in which every rank must have loaded its share


class Group(Protocol):
    """Ranks on which a function can be called: processes of our own, or those that torchrun started."""

    size: int
    alive: bool

    def call(self, function: Callable, *args: Any, timeout: float | None = None, progress: Callable = ..., stop: threading.Event | None = None) -> list[Any]: ...

    def close(self) -> None: ...


class RanksEngine:
    """Splits a model over the ranks of ``make_group()``; after a failure the next run makes a new group.

    Raises ValueError, before any rank starts, on a model that cannot be used or a number of ranks that does not divide
    its experts.
    """

    def __init__(
        self,
        name_or_path: str,
        ranks: int,
        make_group: Callable[[], Group],
        *,
        dtype: str = "auto",
        exchange: str = "all_reduce",
        trust_remote_code: bool = False,
    ) -> None:
        check_ranks(name_or_path, ranks, trust_remote_code)
        self._start = (member.start, name_or_path, dtype, exchange, trust_remote_code)
        self._exchange, self._make_group = exchange, make_group
        self._lock = threading.Lock()
        self._closed = False
        self._group: Group | None = None
        self.info: EngineInfo = self._ready()

    @property
    def group(self) -> Group | None:
        """The ranks that run now; None after a failure, until the next run."""
        return self._group if self._group is not None and self._group.alive else None

    def run(self, request: Request, policy: Policy, *, ep_size: int | None = None, reference: Run | None = None, hooks: Hooks = Hooks()) -> Run:
        """Return one run, with each rank's seconds in the trace's layers; see ``macs.engine.base.Engine.run``.

        Raises EngineFailure, with all ranks ended, if a rank died, raised or hung.
        """
        if ep_size not in (None, self.info.ep_size):
            raise ValueError(f"ep_size is {ep_size}, but the experts are split over {self.info.ep_size} ranks; start the engine with --ranks {ep_size}.")
        if hooks.stop.is_set():
            raise Stopped()
        with self._lock:
            if self._closed:
                raise EngineFailure("This engine has been closed; start a new one.")
            self._ready()
            done = self._run(request, policy, None, hooks)
            if reference is None:
                return done
            along = done
            if done.answer_A != reference.answer_A:
                along = self._run(request, policy, reference.answer_A, hooks)
        return replace(done, trace=replace(done.trace, kl=mean_kl(reference.logprob_AV, along.logprob_AV)))

    def close(self) -> None:
        """End the ranks; the engine cannot be used afterwards."""
        self._closed = True
        if self._group is not None:
            self._group.close()

    def _ready(self) -> EngineInfo:
        """Return what the ranks know of the model, after starting them if none run."""
        if self.group is None:
            self._group = self._make_group()
            self.info = self._group.call(*self._start, timeout=START_TIMEOUT)[0]
        return self.info

    def _run(self, request: Request, policy: Policy, forced: tuple[int, ...] | None, hooks: Hooks) -> Run:
        shares = self._group.call(member.run, request, policy, forced, progress=hooks.progress, stop=hooks.stop)
        return member.put_together(shares, self.info, self._exchange)
