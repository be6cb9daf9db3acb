"""Local ranks: start one process per rank, call a function on all of them, and end them all when one fails.

The caller's process is no rank: whatever a rank does, it can be ended and started again. Ranks meet through a file and
talk over loopback; they import neither the page nor the caller's main module. This module knows no model.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Callable

from macs.engine.base import EngineFailure, Stopped
from macs.engine.wire import receive, send

COMMAND = "import sys; from macs.engine.rank import main; main(int(sys.argv[1]))"
POLL_SECONDS = 0.05
GRACE_SECONDS = 0.7  # after a first failure, for the rank that caused it to be heard too
SILENT_SECONDS = 3.0  # a rank that sends no sign of life for so long is stopped, not slow


@dataclass
class _Member:
    """One rank as the caller sees it."""

    process: subprocess.Popen
    connection: Connection
    position: int = -1  # how many marks the rank has passed in this call
    moved: float = 0.0  # when that last changed
    heard: float = 0.0  # when the rank last said anything
    reply: tuple | None = None


class RankGroup:
    """``size`` processes joined by torch.distributed; a failed call ends them all, and the group with them."""

    def __init__(self, size: int, *, device: str = "cpu", timeout: float = 30.0, start_timeout: float = 600.0) -> None:
        self.size, self.device, self.timeout = size, device, timeout
        self._folder = tempfile.mkdtemp(prefix="macs-ranks-")
        self._members: list[_Member] = []
        self._lock = threading.Lock()
        atexit.register(self.close)
        try:
            for rank in range(size):
                self._members.append(_start(rank, size, device, self._folder))
            self.call(_joined, timeout=start_timeout)
        except BaseException:
            self.close()
            raise

    @property
    def alive(self) -> bool:
        """Return whether every rank's process runs."""
        return bool(self._members) and all(member.process.poll() is None for member in self._members)

    @property
    def pids(self) -> list[int]:
        """Return the process id of each rank."""
        return [member.process.pid for member in self._members]

    def call(
        self,
        function: Callable,
        *args: Any,
        timeout: float | None = None,
        progress: Callable[[Any], None] = lambda _: None,
        stop: threading.Event | None = None,
    ) -> list[Any]:
        """Return ``function(rank, *args)`` of every rank, in rank order; both must pickle.

        Raises EngineFailure, with all ranks ended, when a rank dies, raises, or when no rank moves for ``timeout``
        seconds; ValueError or Stopped, with all ranks alive, when every rank says so.
        """
        with self._lock:
            if not self._members:
                raise EngineFailure("The ranks have been ended; start new ones.")
            try:
                return self._call(function, args, timeout or self.timeout, progress, stop)
            except (ValueError, Stopped):
                raise
            except BaseException:  # a failure, or the caller's own (Ctrl-C): nobody would read the replies
                self.close()
                raise

    def close(self) -> None:
        """End every rank that this group started, and no other process."""
        atexit.unregister(self.close)
        members, self._members = self._members, []
        for member in members:
            member.process.kill()
        for member in members:
            member.process.wait()
            member.connection.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _call(self, function, args, timeout, progress, stop) -> list[Any]:
        now = time.monotonic()
        for member in self._members:
            member.reply, member.position, member.moved, member.heard = None, -1, now, now
            _send(member, ("call", function, args))
        told = False
        while any(member.reply is None for member in self._members):
            if stop is not None and stop.is_set() and not told:
                told = True
                for member in self._members:
                    _send(member, ("stop",))
            self._listen(progress)
            if self._failed() or self._stalled(timeout):
                self._give_up(timeout, progress)
        return _replies([member.reply for member in self._members])

    def _listen(self, progress) -> None:
        by_connection = {member.connection: member for member in self._members if member.reply is None}
        for connection in wait(list(by_connection), POLL_SECONDS):
            member = by_connection[connection]
            try:
                kind, *rest = receive(connection)
            except (EOFError, OSError):
                member.reply = ("died",)
                continue
            member.heard = time.monotonic()
            if kind == "beat":
                if rest[0] != member.position:
                    member.position, member.moved = rest[0], member.heard
            elif kind == "progress":
                progress(rest[0])
            else:
                member.reply = (kind, *rest)

    def _failed(self) -> bool:
        return any(member.reply is not None and member.reply[0] in ("died", "failed") for member in self._members)

    def _stalled(self, timeout: float) -> bool:
        waiting = [member for member in self._members if member.reply is None]
        return bool(waiting) and time.monotonic() - max(member.moved for member in waiting) > timeout

    def _give_up(self, timeout: float, progress) -> None:
        """Raise what went wrong in one sentence: a dead rank explains more than one that missed it."""
        until = time.monotonic() + (GRACE_SECONDS if self._failed() else 0)
        while time.monotonic() < until and any(member.reply is None for member in self._members):
            self._listen(lambda _: None)
        index, what = self._culprit(timeout)
        raise EngineFailure(f"Rank {index} of {self.size} {what}. All ranks were ended; run again to start new ones.")

    def _culprit(self, timeout: float) -> tuple[int, str]:
        replies = [member.reply or ("waiting",) for member in self._members]
        for index, reply in enumerate(replies):
            if reply[0] == "died":
                return index, _death(self._members[index].process)
        failures = [(secondary, index, text) for index, (kind, *rest) in enumerate(replies) if kind == "failed" for text, secondary in [rest]]
        if failures:
            _, index, text = min(failures)
            return index, f"failed: {text}"
        for index, reply in enumerate(replies):
            if reply[0] == "refused":
                return index, f"refused what others accepted: {reply[1]}"
        waiting = [(i, member) for i, member in enumerate(self._members) if member.reply is None]
        now = time.monotonic()
        silent = [i for i, member in waiting if now - member.heard > min(SILENT_SECONDS, timeout)]
        index = silent[0] if silent else min(waiting, key=lambda pair: pair[1].position)[0]
        return index, f"has not moved for {timeout:g} seconds (raise --rank-timeout if it is only slow)"


def _joined(rank) -> int:
    """Runs on a rank: returning at all shows that it has joined the others."""
    return rank.index


def _start(rank: int, size: int, device: str, folder: str) -> _Member:
    ours, theirs = socket.socketpair()
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    threads = max(1, (os.cpu_count() or 1) // size)
    environment = os.environ | {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "GLOO_SOCKET_IFNAME": loopback,  # torch's own sockets between ranks listen on loopback alone
        "NCCL_SOCKET_IFNAME": loopback,
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
    }
    environment.setdefault("OMP_NUM_THREADS", str(threads))
    if device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""  # transformers would otherwise put the ranks on the GPUs
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, str(theirs.fileno())],
            env=environment,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=2,  # the caller's stdout may be a document
            start_new_session=True,  # Ctrl-C reaches the caller alone, and the caller ends its ranks
        )
    member = _Member(process, Connection(ours.detach()))
    _send(member, ("join", os.path.join(folder, "meeting"), device))
    return member


def _send(member: _Member, message: tuple) -> None:
    try:
        send(member.connection, message)
    except OSError:
        member.reply = ("died",)


def _death(process: subprocess.Popen) -> str:
    try:
        code = process.wait(timeout=GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        return "closed its connection"
    if code >= 0:
        return f"ended with exit code {code}"
    hint = ", perhaps for lack of memory" if -code == signal.SIGKILL else ""
    return f"was killed by signal {-code} ({signal.Signals(-code).name}{hint})"


def _replies(replies: list[tuple]) -> list[Any]:
    kinds = {reply[0] for reply in replies}
    if kinds == {"done"}:
        return [reply[1] for reply in replies]
    if kinds == {"refused"}:
        raise ValueError(replies[0][1])
    if kinds == {"stopped"}:
        raise Stopped()
    raise EngineFailure(f"The ranks disagree on how the call ended ({', '.join(sorted(kinds))}). Run again to start new ones.")
