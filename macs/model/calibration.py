"""Which experts serve which modality (MACS §3.3): counts from example prompts, kept as one JSON file per model.

The file lies beside a model in a writable folder, else in the user's cache directory. It names the weights it was made
from, so that a changed model is not read with another's groups.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping

import torch

from macs.core import modality_groups
from macs.model.anatomy import Anatomy

FILE = "macs_calibration.json"
FORMAT = "macs-calibration-1"
_SAMPLE = 64 * 1024  # bytes read at three places of each weight file, at 64 of a large one
_LARGE = 10**8


@dataclass(frozen=True)
class Calibration:
    """Pairs that each expert got from visual and from text tokens, by decoder layer, and the groups they make."""

    identity: str  # of the weights, see ``model_identity``
    margin: float  # how far from 0.5 a preference must be
    prompts: int
    date: str  # ISO 8601
    visual_pairs: Mapping[int, tuple[int, ...]]
    text_pairs: Mapping[int, tuple[int, ...]]

    @property
    def groups(self) -> dict[int, torch.Tensor]:
        """Return m_j [N] int8 of each decoder layer: 1 visual, -1 text, 0 shared."""
        pairs = ((layer, torch.tensor(counts), torch.tensor(self.text_pairs[layer])) for layer, counts in self.visual_pairs.items())
        return {layer: modality_groups(visual_N, text_N, self.margin) for layer, visual_N, text_N in pairs}


def model_identity(folder: str | Path) -> str:
    """Return a digest of a folder's config and weight files: names, sizes and samples of each, and the revision of a hub snapshot."""
    digest = hashlib.sha256()
    if "snapshots" in Path(folder).parts:
        digest.update(f"{Path(folder).name}\n".encode())  # the hub's commit
    for path in sorted(Path(folder).iterdir()):
        if path.suffix not in (".safetensors", ".bin") and path.name != "config.json":
            continue
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            for start in _places(size):
                file.seek(start)
                digest.update(file.read(_SAMPLE))
    return digest.hexdigest()


def _places(size: int) -> list[int]:
    """Return where samples of a file begin; a large one holds many tensors, of which one may be new."""
    return [0, size // 2, max(size - _SAMPLE, 0)] if size < _LARGE else [i * (size - _SAMPLE) // 63 for i in range(64)]


def calibration_path(folder: str | Path, identity: str) -> Path:
    """Return where a calibration of this model is written: beside it, or in the cache if that cannot be written."""
    beside = Path(folder) / FILE
    hub_cache = "snapshots" in Path(folder).parts  # a folder that the hub client owns and may delete
    return _cached(identity) if hub_cache or not os.access(folder, os.W_OK) else beside


def _cached(identity: str) -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "macs" / "calibration" / f"{identity[:32]}.json"


def write_calibration(calibration: Calibration, path: Path) -> None:
    """Write one JSON file, whole or not at all; raises OSError if it cannot be written."""
    groups = calibration.groups
    layers = {
        str(layer): {
            "visual_pairs": list(visual),
            "text_pairs": list(calibration.text_pairs[layer]),
            "modality": groups[layer].tolist(),
        }
        for layer, visual in calibration.visual_pairs.items()
    }
    plain = {name: getattr(calibration, name) for name in ("identity", "margin", "prompts", "date")}
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps({"format": FORMAT, **plain, "layers": layers}, indent=1) + "\n")
    part.replace(path)


def find_calibration(folder: str | Path, identity: str | None = None) -> Calibration | None:
    """Return the calibration made from exactly these weights, from beside the model or the cache; None if there is none.

    Raises ValueError if a file is there but cannot be read.
    """
    identity = identity or model_identity(folder)
    for path in (Path(folder) / FILE, _cached(identity)):
        found = _read(path)
        if found is not None and found.identity == identity:
            return found
    return None


def _read(path: Path) -> Calibration | None:
    try:
        values = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        values = {}
    try:
        if values.pop("format", None) != FORMAT:
            raise KeyError("format")
        layers = {int(layer): entry for layer, entry in values.pop("layers").items()}
        pairs = {name: {layer: tuple(map(int, entry[name])) for layer, entry in layers.items()} for name in ("visual_pairs", "text_pairs")}
        return Calibration(**values, **pairs)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ValueError(f"{path.name} beside the model is not a readable calibration; delete it and run `python -m macs calibrate`.") from None


def modality_tensors(modality: Mapping[int, Any] | None, anatomy: Anatomy) -> dict[int, torch.Tensor]:
    """Return m_j [N] int8 of each layer; all shared without calibration. Raises ValueError on what does not fit."""
    checked = {}
    for layer in anatomy.layers:
        if modality is None:
            checked[layer.index] = torch.zeros(anatomy.num_experts, dtype=torch.int8)
            continue
        if layer.index not in modality:
            raise ValueError(f"The calibration has no layer {layer.index}; calibrate this model again.")
        groups_N = torch.as_tensor(modality[layer.index])
        if groups_N.shape != (anatomy.num_experts,) or not bool(((groups_N == -1) | (groups_N == 0) | (groups_N == 1)).all()):
            raise ValueError(
                f"The calibration of layer {layer.index} is not one of -1, 0, 1 for each of {anatomy.num_experts} experts; "
                "calibrate this model again."
            )
        checked[layer.index] = groups_N.to(torch.int8)
    return checked
