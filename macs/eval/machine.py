"""What a measurement was made on, so that a reader can repeat it."""

from __future__ import annotations

import datetime
import os
import platform
import shlex
import sys
import warnings
from pathlib import Path
from typing import Any, Callable

import torch
import transformers

from macs.config import VERSION


def environment(device: str) -> dict[str, Any]:
    """Return command, date, machine and versions as plain JSON values."""
    cuda = device == "cuda"
    return {
        "command": "python -m macs " + shlex.join(sys.argv[1:]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": torch.cuda.get_device_name() if cuda else f"{_processor()}, {os.cpu_count()} cores",
        "threads": None if cuda else torch.get_num_threads(),
        "load_average": round(os.getloadavg()[0], 2),  # of the minute before; above the number of threads, times are too long
        "versions": {"macs": VERSION, "python": platform.python_version(), "torch": torch.__version__, "transformers": transformers.__version__},
    }


def host_syncs(run: Callable[[], Any], device: torch.device) -> int | None:
    """Return how often ``run`` makes the host wait for a GPU, as CUDA's own check counts; None on a CPU."""
    if device.type != "cuda":
        return None
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            run()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return sum("synchroniz" in str(warning.message) for warning in seen)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
