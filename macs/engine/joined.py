"""Ranks that torchrun started, on one host or several: rank 0 calls, the others serve until it is done.

Such a launch ends as a whole: a rank that fails or hangs says so in one sentence and leaves, and torchrun ends the rest.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any, Callable

import torch.distributed as dist

from macs.engine.base import EngineFailure, Stopped
from macs.engine.rank import join, perform

POLL_SECONDS = 0.5


def launched() -> int:
    """Return how many ranks torchrun started, this process among them; 0 if it did not start this process."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return int(os.environ["WORLD_SIZE"]) if all(name in os.environ for name in names) else 0


class JoinedGroup:
    """All processes of a torchrun launch; ``call`` is for rank 0, ``serve`` for the others."""

    def __init__(self, *, device: str = "cpu", timeout: float = 30.0) -> None:
        self.size, self.timeout, self.alive = launched(), timeout, True
        self._progress: Callable[[Any], None] = lambda _: None
        self._limit: float | None = None  # seconds without a move in the call that runs; None between calls
        self._rank = join(int(os.environ["RANK"]), self.size, device, lambda message: self._progress(message[1]))
        threading.Thread(target=self._guard, daemon=True).start()

    @property
    def index(self) -> int:
        """This process's rank."""
        return self._rank.index

    def call(
        self,
        function: Callable,
        *args: Any,
        timeout: float | None = None,
        progress: Callable[[Any], None] = lambda _: None,
        stop: threading.Event | None = None,
    ) -> list[Any]:
        """Return ``function(rank, *args)`` of every rank, in rank order; raises as ``RankGroup.call`` does."""
        assert self.index == 0, "only rank 0 calls"
        if not self.alive:
            raise EngineFailure("The ranks have ended; start the command again.")
        self._progress = progress
        self._rank.stop = stop or threading.Event()
        self._share((function, args, timeout or self.timeout))
        replies = self._perform(function, args, timeout or self.timeout)
        kinds = {reply[0] for reply in replies}
        if kinds == {"done"}:
            return [reply[1] for reply in replies]
        if kinds == {"refused"}:
            raise ValueError(replies[0][1])
        if kinds == {"stopped"}:
            raise Stopped()
        self.alive = False
        raise EngineFailure(f"The ranks disagree on how the call ended ({', '.join(sorted(kinds))}). Start the command again.")

    def serve(self) -> None:
        """Perform rank 0's calls until it closes the group."""
        while (work := self._share(None)) is not None:
            self._perform(*work)

    def close(self) -> None:
        """Let the other ranks leave; they end on their own when this process does not come that far."""
        if self.alive and self.index == 0:
            self.alive = False
            self._share(None)

    def _share(self, work: tuple | None) -> tuple | None:
        box = [work]
        dist.broadcast_object_list(box, src=0, group=self._rank.control)
        return box[0]

    def _perform(self, function: Callable, args: tuple, limit: float) -> list[tuple]:
        """Run one call here and return all replies on rank 0; a rank that failed takes the launch with it."""
        self._limit = limit
        reply = perform(self._rank, function, args)
        if reply[0] == "failed":
            self._leave(f"failed: {reply[1]}")
        replies: list[Any] = [None] * self.size
        dist.gather_object(reply, replies if self.index == 0 else None, group=self._rank.control)
        self._limit = None
        return replies

    def _guard(self) -> None:
        """Runs beside the calls: a rank that does not move is waiting for one that hangs, or hangs itself."""
        position, moved = -1, time.monotonic()
        while True:
            time.sleep(POLL_SECONDS)
            limit, now = self._limit, time.monotonic()
            if limit is None or self._rank.position != position:
                position, moved = self._rank.position, now
            elif now - moved > limit:
                self._leave(f"has not moved for {limit:g} seconds (raise --rank-timeout if it is only slow)")

    def _leave(self, what: str) -> None:
        print(f"Rank {self.index} of {self.size} {what}. Start the command again.", file=sys.stderr, flush=True)
        os._exit(1)
