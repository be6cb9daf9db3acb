"""Functions that tests run on ranks, and a checkpoint that ranks can load. Ranks import this module by name."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from macs.model import apply
from macs.model.parallel import clocked
from tests import tiny


def save_published(model: Any, folder: Path) -> Path:
    """Write a Qwen3-VL-MoE as published checkpoints hold it: experts as [N, in, out], which ranks need to load."""
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    tiny.processor().save_pretrained(folder)
    state = {name: value.transpose(1, 2).contiguous() if ".experts." in name else value for name, value in model.state_dict().items()}
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    return folder


def total(rank, value: float) -> float:
    """An all-reduce, to see that ranks talk."""
    tensor = torch.tensor([value + rank.index])
    dist.all_reduce(tensor)
    return tensor.item()


def forward(rank, batch: dict, policy: str, fields: dict) -> tuple:
    """Logits, decisions and times of one forward pass on this rank's share of the engine's model."""
    model = rank.loaded.loaded.model
    with torch.no_grad(), clocked(model) as records, apply(model, policy, ep_size=rank.size, **fields) as recording:
        logits = model(**batch).logits
    return logits, recording.trace, [record.read() for record in records]
