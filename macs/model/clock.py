"""Seconds of a piece of work on the device that does it, without making the host wait."""

from __future__ import annotations

import time

import torch


class Stopwatch:
    """Measures what is enqueued inside ``with``; on CUDA by events, read only when ``seconds`` is asked for."""

    def __init__(self, device: torch.device) -> None:
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if device.type == "cuda" else None
        self._marks = [0.0, 0.0]

    def __enter__(self) -> Stopwatch:
        self._mark(0)
        return self

    def __exit__(self, *_: object) -> None:
        self._mark(1)

    def _mark(self, which: int) -> None:
        if self._events:
            self._events[which].record()
        else:
            self._marks[which] = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Return the seconds between entry and exit; waits for the device."""
        if self._events:
            self._events[1].synchronize()
            return self._events[0].elapsed_time(self._events[1]) / 1e3
        return self._marks[1] - self._marks[0]
