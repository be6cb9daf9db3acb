"""What tests ask of the processes that they start."""

from __future__ import annotations

import os
import time
from pathlib import Path


def gone(pids, seconds=10.0):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not any(Path(f"/proc/{pid}").exists() or signalable(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


def signalable(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def listening(pid):
    """Addresses, as the kernel writes them, on which a process accepts connections."""
    links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return [line[1].split(":")[0] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in links]


def children(pid):
    return [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]
