"""Memory: what a model's weights need, and what this process may use of a machine that it may share."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import torch
from torch import nn

ROOM = 1_000_000_000  # bytes that libraries, the cache and activations of one run take beside the weights
_CONTAINER = ("memory.max", "memory/memory.limit_in_bytes")  # where the two versions of cgroups say what a container may use


def host_memory(groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes that this process may use: the machine's, its container's limit or its own, whichever is least."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), resource.getrlimit(resource.RLIMIT_AS)[0]]
    for name in _CONTAINER:
        try:
            limits.append(int((groups / name).read_text()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return min(limit for limit in limits if limit > 0)  # -1: no limit


def weight_type(config: Any, dtype: str = "auto") -> torch.dtype:
    """Return the type of the weights in memory: the one asked for, what the config says, else transformers' default."""
    found = (config.dtype or config.get_text_config().dtype or torch.float32) if dtype == "auto" else dtype
    return getattr(torch, found) if isinstance(found, str) else found


def weight_bytes(blank: nn.Module, dtype: torch.dtype, experts: int = 0, ranks: int = 1) -> int:
    """Return the bytes of one rank's weights; of ``experts`` parameters a rank holds its share, of all others each."""
    count = sum(parameter.numel() for parameter in blank.parameters())
    return (count - experts + experts // ranks) * torch.empty((), dtype=dtype, device="meta").element_size()


def check_memory(name: str, needed: int, device: str | torch.device, ranks: int) -> None:
    """Raise ValueError unless ``ranks`` processes of ``needed`` bytes each fit: on a GPU each, else all in this machine's memory."""
    on_gpu = torch.device(device).type == "cuda"
    memory = torch.cuda.mem_get_info(device)[1] if on_gpu else host_memory()
    total = needed if on_gpu else needed * ranks
    if total + ROOM > memory:
        each = f" on each of {ranks} ranks" if on_gpu and ranks > 1 else ""
        raise ValueError(
            f"{name} needs {total / 1e9:.1f} GB for its weights{each} and {ROOM / 1e9:.0f} GB to run, and "
            f"{'the GPU' if on_gpu else 'this machine'} has {memory / 1e9:.1f} GB; choose a smaller model, or see what fits with `python -m macs check`."
        )
