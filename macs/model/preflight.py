"""What a model needs and what runs of it, from its config and the list of its weight files; no weight is read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from macs.config import check_ep_size
from macs.model.anatomy import dissect
from macs.model.load import quantisation, read_source, without_weights
from macs.model.memory import host_memory, weight_bytes, weight_type

INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Files:
    """The weight files of a checkpoint, as its index or its folder lists them."""

    count: int
    bytes: int | None  # None: the index does not say
    missing: tuple[str, ...] = ()  # listed by the index, not in the folder


@dataclass(frozen=True)
class Preflight:
    """The answer of ``preflight``; sizes in bytes, of weights alone."""

    name: str
    family: str  # title, or the config's model_type
    known: bool  # listed in macs.model.families
    classes: tuple[str, str, str]  # of the model, a router and its experts
    router: str
    layers: tuple[int, int]  # MoE layers, decoder layers
    experts: int
    top_k: int
    parameters: int
    expert_parameters: int  # of all routed experts
    active_parameters: int  # a token's share: everything but routed experts, and top-k of those
    dtype: str
    quantised: str | None
    files: Files | None  # None: there are none
    process_bytes: int | None  # in one process; None: quantised, and no file says
    rank_bytes: dict[int, int]  # of one rank, by number of ranks
    refused: dict[int, str]  # why not, by number of ranks
    gpus: tuple[tuple[str, int], ...]  # name and memory
    host_bytes: int  # memory of this machine that this process may use
    supports: dict[str, str]  # run, ranks, overlay, video, calibration: "yes", or why not

    @property
    def fits(self) -> dict[int, bool]:
        """Return, by number of processes, whether the weights fit: on as many GPUs if there are any, else all in this machine's memory."""
        needs = ({} if self.process_bytes is None else {1: self.process_bytes}) | self.rank_bytes
        if not self.gpus:
            return {g: g * size < self.host_bytes for g, size in needs.items()}
        return {g: g <= len(self.gpus) and size < min(memory for _, memory in self.gpus[:g]) for g, size in needs.items()}


def preflight(name: str, sizes: tuple[int, ...] = (2, 4, 8), trust_remote_code: bool = False) -> Preflight:
    """Return what a folder or hub id needs on each of ``sizes`` ranks; raises ValueError if it cannot be used at all."""
    source = read_source(name, trust_remote_code)
    config = source.config
    blank = without_weights(config, trust_remote_code)
    anatomy, method, files = dissect(blank), quantisation(config), weight_files(name)
    total = sum(parameter.numel() for parameter in blank.parameters())
    experts = sum(parameter.numel() for layer in anatomy.layers for parameter in layer.experts.parameters())
    dtype = weight_type(config)
    refused = {g: why for g in sizes if (why := _refusal(blank, anatomy.num_experts, method, g))}
    return Preflight(
        name=Path(name).name if Path(name).is_dir() else name,
        family=anatomy.family.title or anatomy.family.name,
        known=bool(anatomy.family.title),
        classes=(type(blank).__name__, type(anatomy.layers[0].router).__name__, type(anatomy.layers[0].experts).__name__),
        router=anatomy.family.router or "found at the first run",
        layers=(len(anatomy.layers), config.get_text_config().num_hidden_layers),
        experts=anatomy.num_experts,
        top_k=anatomy.top_k,
        parameters=total,
        expert_parameters=experts,
        active_parameters=total - experts + experts * anatomy.top_k // anatomy.num_experts,
        dtype=str(dtype).removeprefix("torch."),
        quantised=method,
        files=files,
        process_bytes=(files and files.bytes) if method else weight_bytes(blank, dtype),
        rank_bytes={g: weight_bytes(blank, dtype, experts, g) for g in sizes if g not in refused},
        refused=refused,
        gpus=tuple((torch.cuda.get_device_name(i), torch.cuda.mem_get_info(i)[1]) for i in range(torch.cuda.device_count())),
        host_bytes=host_memory(),
        supports=_supports(blank, anatomy.family, method, source.published),
    )


def _refusal(blank: nn.Module, experts: int, method: str | None, ranks: int) -> str | None:
    try:
        check_ep_size(ranks, experts, "ranks")
    except ValueError:
        return f"{experts} experts do not divide by {ranks}"
    if method:
        return f"experts quantised by {method} are not split"
    return None if blank.ep_plan else "transformers has no expert-parallel plan for this model"


def _supports(blank: nn.Module, family: Any, method: str | None, published: str) -> dict[str, str]:
    frames = "yes" if family.video else "no: it takes none" if family.title else "no: the places of frames are not known here"
    return {
        "run": "yes",
        "ranks": _refusal(blank, 1, method, 1) or "yes",
        "overlay": "yes" if family.grid else family.no_grid or "no: the patch grid of this family is not known here",
        "video": f"no: {family.video_but}" if published == "kimi_vl" else frames,
        "calibration": "yes",
    }


def weight_files(name: str) -> Files | None:
    """Return what the index, or the folder without one, says of the weight files; None if there is neither."""
    folder = Path(name) if Path(name).is_dir() else None
    index = folder / INDEX if folder else _from_hub(name)
    if index is not None and index.is_file():
        return _indexed(index, folder)
    found = sorted(folder.glob("*.safetensors")) if folder else []
    return Files(len(found), sum(path.stat().st_size for path in found)) if found else None


def _indexed(index: Path, folder: Path | None) -> Files:
    try:
        listed = json.loads(index.read_text())
        names = sorted(set(listed["weight_map"].values()))
        size = listed.get("metadata", {}).get("total_size")
    except (ValueError, KeyError, AttributeError):
        raise ValueError(f"{INDEX} of this model is damaged; copy it again.") from None
    return Files(len(names), size, tuple(n for n in names if folder and not (folder / n).is_file()))


def _from_hub(name: str) -> Path | None:
    from transformers.utils import cached_file

    found = cached_file(name, INDEX, _raise_exceptions_for_missing_entries=False, _raise_exceptions_for_connection_errors=False)
    return Path(found) if found else None
