"""MACS workbench: capacity-limited expert parallelism for MoE multimodal models, run, shown and tested."""

from __future__ import annotations

from typing import Any

from macs.config import PRESETS, VERSION, Policy, preset

__version__ = VERSION
__all__ = ["PRESETS", "Policy", "Trace", "apply", "load_trace", "preset", "save_trace", "schedule"]

_HOMES = {"schedule": "macs.core", "apply": "macs.model", "Trace": "macs.trace", "load_trace": "macs.trace_file", "save_trace": "macs.trace_file"}


def __getattr__(name: str) -> Any:
    """Import on first use: the command line and the page's settings need none of torch."""
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'macs' has no attribute {name!r}")
