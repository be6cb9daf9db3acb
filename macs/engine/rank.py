"""One rank: a process that runs, together with the other ranks, the functions it is sent.

It ends when its caller does, whatever it is doing. Importing this module costs nothing; a rank imports torch on start.
"""

from __future__ import annotations

import datetime
import os
import queue
import resource
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any, Callable

from macs.engine.base import Progress, Stopped
from macs.engine.wire import receive, send

BEAT_SECONDS = 0.2
PROGRESS_SECONDS = 0.05
JOIN_TIMEOUT = datetime.timedelta(hours=2)  # loading differs between ranks; stalls are found by the caller's clock
IDLE_TIMEOUT = datetime.timedelta(days=365)  # of the control group, on which idle ranks wait


class Rank:
    """What a function that runs on every rank is given: who it is, and how it reports, stops and keeps state."""

    def __init__(self, index: int, size: int, device: str, tell: Callable[[tuple], None]) -> None:
        import torch.distributed as dist

        self.index, self.size, self.device = index, size, device
        self.stop = threading.Event()
        self.position = 0
        self.loaded: Any = None  # what a first call left for those that follow
        self.control = dist.new_group(backend="gloo", timeout=IDLE_TIMEOUT)
        self._tell, self._told, self._phase = tell, 0.0, ""

    def mark(self) -> None:
        """Count one step forward; a rank that stops counting is taken for hung."""
        self.position += 1

    def progress(self, what: Progress) -> None:
        """Report progress to the caller, from rank 0 for all: at once when the phase changes, else 20 times a second at most."""
        self.mark()
        now = time.monotonic()
        if self.index == 0 and (what.phase != self._phase or now - self._told > PROGRESS_SECONDS):
            self._phase, self._told = what.phase, now
            self._tell(("progress", what))

    def agreed_stop(self) -> bool:
        """Return on every rank whether any was told to stop, so that all leave at the same collective."""
        import torch
        import torch.distributed as dist

        self.mark()
        flag = torch.tensor([int(self.stop.is_set())])
        dist.all_reduce(flag, dist.ReduceOp.MAX, group=self.control)
        return bool(flag.item())

    def peak_bytes(self) -> dict[str, int]:
        """Return the most memory this process has held, on the host and on its device."""
        unit = 1 if sys.platform == "darwin" else 1024
        peak = {"host": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}
        if self.device == "cuda":
            import torch

            peak["device"] = torch.cuda.max_memory_allocated()
        return peak


def join(index: int, size: int, device: str, tell: Callable[[tuple], None], meeting: str | None = None) -> Rank:
    """Join the process group, through the file ``meeting`` or torchrun's environment, and return this rank."""
    import torch
    import torch.distributed as dist

    local = int(os.environ["LOCAL_RANK"])
    if device == "cuda":
        torch.cuda.set_device(local)
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        store=dist.FileStore(meeting, size) if meeting else None,
        rank=index if meeting else -1,
        world_size=size if meeting else -1,
        timeout=JOIN_TIMEOUT,
        device_id=torch.device("cuda", local) if device == "cuda" else None,
    )
    return Rank(index, size, device, tell)


def perform(rank: Rank, function: Callable, args: tuple) -> tuple:
    """Run one call and return its reply: ``done``, ``refused`` (bad input), ``stopped`` or ``failed``."""
    rank.position = 0
    try:
        return ("done", function(rank, *args))
    except ValueError as error:
        return ("refused", str(error))
    except Stopped:
        return ("stopped",)
    except Exception as error:
        traceback.print_exc()
        return ("failed", sentence(error), lost_a_peer(error))


def sentence(error: BaseException) -> str:
    """Return an exception as one short line."""
    lines = str(error).strip().splitlines() or ["no message"]
    return f"{type(error).__name__}: {lines[0][:300].rstrip('.')}"


def lost_a_peer(error: BaseException) -> bool:
    """Return whether an error only says that another rank went away; used to name the rank that did."""
    import torch.distributed as dist

    return isinstance(error, dist.DistError) or "gloo" in str(error) or "NCCL" in str(error)


def main(descriptor: int) -> None:
    """Serve the caller at the other end of ``descriptor`` until it closes."""
    connection = Connection(descriptor)
    sending = threading.Lock()

    def tell(message: tuple) -> None:
        with sending:
            send(connection, message)

    try:
        _, meeting, device = receive(connection)
    except (EOFError, OSError):
        return  # the caller went away before it said anything
    rank = None
    calls: queue.SimpleQueue = queue.SimpleQueue()

    def listen() -> None:
        try:
            while True:
                kind, *rest = receive(connection)
                if kind == "call":
                    if rank is not None:
                        rank.stop.clear()
                    calls.put(rest)
                elif rank is not None:
                    rank.stop.set()
        except (EOFError, OSError):
            os._exit(0)  # the caller is gone; a collective would wait for ever
        except Exception as error:  # what was sent cannot be read here
            tell(("failed", sentence(error), False))

    def beat() -> None:
        try:
            while True:
                tell(("beat", rank.position if rank else -1))
                threading.Event().wait(BEAT_SECONDS)
        except OSError:
            os._exit(0)

    for target in (listen, beat):
        threading.Thread(target=target, daemon=True).start()
    rank = join(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), device, tell, meeting)
    while True:
        function, args = calls.get()
        tell(perform(rank, function, args))
