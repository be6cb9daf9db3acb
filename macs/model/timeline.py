"""When things happened on a rank's device, on a clock that the ranks of one run share."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch


class Timeline:
    """Marks moments of the work enqueued on a device; on CUDA by events, so that marking never makes the host wait."""

    def __init__(self, device: torch.device) -> None:
        self._start = None
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            self._start = torch.cuda.Event(enable_timing=True)
            self._start.record()
            self._start.synchronize()
        self._zero = time.perf_counter()

    def mark(self) -> Any:
        """Return a mark of this moment, for ``seconds``."""
        if self._start is None:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, mark: Any) -> float:
        """Return when the device passed ``mark``, in seconds of this host's monotonic clock; waits for the device."""
        if self._start is None:
            return mark
        mark.synchronize()
        return self._zero + self._start.elapsed_time(mark) / 1e3


@dataclass
class Stretch:
    """Two marks: a piece of work, or one collective from entering it to leaving it."""

    begin: Any
    end: Any


@dataclass
class CallRecord:
    """One call of one layer's experts on this rank."""

    line: Timeline
    pairs: int = 0  # that this rank's experts executed
    experts: Stretch | None = None
    collectives: list[Stretch] = field(default_factory=list)

    def read(self) -> CallTimes:
        """Return the marks as seconds; waits for the device."""

        def span(stretch: Stretch) -> tuple[float, float]:
            return self.line.seconds(stretch.begin), self.line.seconds(stretch.end)

        return CallTimes(self.pairs, span(self.experts), tuple(span(stretch) for stretch in self.collectives))


@dataclass(frozen=True)
class CallTimes:
    """The same in seconds of one host's clock; what a rank sends to whoever puts the ranks together."""

    pairs: int
    experts: tuple[float, float]
    collectives: tuple[tuple[float, float], ...]


def split_collectives(times_G: list[CallTimes], offset_G: list[float]) -> tuple[list[float], list[float]]:
    """Return seconds of communication and of waiting for each of G ranks, from one layer's collectives.

    A collective can start moving data once the last rank has entered it: what a rank spends in it before that moment
    is waiting, what comes after is communication. ``offset_G`` is added to a rank's clock to make it rank 0's.
    """
    communication_G, waiting_G = [0.0] * len(times_G), [0.0] * len(times_G)
    for spans_G in zip(*(times.collectives for times in times_G), strict=True):
        shifted_G = [(begin + offset, end + offset) for (begin, end), offset in zip(spans_G, offset_G, strict=True)]
        last = max(begin for begin, _ in shifted_G)
        for rank, (begin, end) in enumerate(shifted_G):
            wait = min(max(last - begin, 0.0), end - begin)
            waiting_G[rank] += wait
            communication_G[rank] += end - begin - wait
    return communication_G, waiting_G
