"""Load a model and its processor, after a look at the config alone: what cannot run is refused before any weight is read."""

from __future__ import annotations

import copy
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForImageTextToText
from transformers.utils import logging

from macs.config import check_ep_size
from macs.model.anatomy import Anatomy, dissect
from macs.model.calibration import find_calibration
from macs.model.memory import check_memory, weight_bytes, weight_type
from macs.model.parallel import distributed_config
from macs.model.published import Source, open_processor, open_source

MAX_VISUAL_TOKENS = 4096  # of one image; processors that allow more are held to it
MAX_PROMPT_TOKENS = 8192
ANSWER_ROOM = 512  # tokens of the template and the answer


@dataclass(frozen=True)
class Loaded:
    """A model ready to run, and what a caller needs to know of it."""

    model: nn.Module
    processor: Any
    name: str  # as the user gave it, a folder by its last part
    folder: Path  # where the weights lie
    anatomy: Anatomy
    max_visual_tokens: int
    max_prompt_tokens: int
    notices: tuple[str, ...] = ()

    num_layers = property(lambda self: len(self.anatomy.layers), doc="MoE layers.")
    num_experts = property(lambda self: self.anatomy.num_experts)
    top_k = property(lambda self: self.anatomy.top_k)
    image_token_id = property(lambda self: self.anatomy.image_token)


def load(
    name_or_path: str | Path,
    *,
    dtype: str = "auto",
    device: str | torch.device = "cpu",
    device_map: str | None = None,
    ranks: int = 1,
    exchange: str = "all_reduce",
    trust_remote_code: bool = False,
) -> Loaded:
    """Return the model in eval mode on ``device``; raises ValueError with one sentence if it cannot be used.

    A folder is read without any network. No code that comes with a model is run unless ``trust_remote_code``. With
    ``device_map``, accelerate lays one process's model over several devices. With ``ranks`` above 1 this process is one
    of so many that load together, each its share of the experts, and ``exchange`` is how tokens reach them.
    """
    name = str(name_or_path)
    local = Path(name).is_dir()
    source = read_source(name, trust_remote_code)
    blank = without_weights(source.config, trust_remote_code)
    check_split(blank, ranks)
    placed = _placement(blank, source.config, device, device_map, ranks, exchange)
    if local and not has_weights(name):
        raise ValueError(f"The folder {Path(name).name!r} has a config but no weights; copy its .safetensors files into it.")
    if not device_map and not quantisation(source.config):  # accelerate spreads what does not fit; quantised sizes are not known from a config
        check_memory(_shown(name), weight_bytes(blank, weight_type(source.config, dtype), _expert_parameters(blank), ranks), device, ranks)
    if not sys.stderr.isatty():
        logging.disable_progress_bar()  # in a log or a pipe a bar is noise between two sentences
    try:
        processor = open_processor(name, source, local=local, trust_remote_code=trust_remote_code)
        model, found = AutoModelForImageTextToText.from_pretrained(
            name,
            config=source.config,
            key_mapping=source.renamed,
            dtype=dtype,
            local_files_only=local,
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
            **placed,
        )
    except (OSError, ValueError, RuntimeError, KeyError, ImportError) as error:
        raise ValueError(f"{_shown(name)} cannot be loaded: {_first_line(error, name)}") from error
    if found["missing_keys"]:  # transformers only warns, and leaves them random
        lacking = sorted(found["missing_keys"])
        raise ValueError(f"{_shown(name)} lacks {len(lacking)} of the model's weights, {lacking[0]} among them; copy all its files again.")
    model = model.eval() if placed else model.to(device).eval()
    anatomy = dissect(model)
    max_visual = _limit_image(processor, anatomy)
    why = anatomy.family.no_grid or "the patch grid of this model's family is not known here"
    notices = () if anatomy.family.grid else (f"No overlay: {why}.",)
    return Loaded(
        model=model,
        processor=processor,
        name=Path(name).name if local else name,
        folder=Path(name) if local else _snapshot(name),
        anatomy=anatomy,
        max_visual_tokens=max_visual,
        max_prompt_tokens=_limit_prompt(source.config, max_visual),
        notices=notices,
    )


def read_source(name: str, trust_remote_code: bool = False) -> Source:
    """Return what a folder or hub id holds, from its config alone; raises ValueError if there is none that transformers knows."""
    local = Path(name).is_dir()
    if local and not (Path(name) / "config.json").is_file():
        raise ValueError(f"The folder {Path(name).name!r} is no model: it has no config.json. Name the folder that holds one.")
    if not local and (Path(name).is_absolute() or name.startswith(".") or name.count("/") > 1):
        raise ValueError(f"There is no model folder {name!r}; name a folder or a Hugging Face id.")
    try:
        return open_source(name, local=local, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError, TypeError) as error:
        code = "its code is not run without --trust-remote-code" if "trust_remote_code" in str(error) else _first_line(error, name)
        raise ValueError(f"{_shown(name)} is not a model that transformers knows: {code}") from error


def read_config(name: str) -> Any:
    """Return the config of the class that runs a folder or hub id; raises ValueError as ``read_source`` does."""
    return read_source(name).config


def without_weights(config: Any, trust_remote_code: bool = False) -> nn.Module:
    """Return the model that ``config`` describes, on the meta device; raises ValueError if it is none that takes images."""
    own_class = trust_remote_code and AutoModelForImageTextToText.__name__ in getattr(config, "auto_map", {})
    if not own_class and type(config) not in AutoModelForImageTextToText._model_mapping:
        raise ValueError(f"A {config.model_type} model does not take images and text; choose a multimodal mixture-of-experts model.")
    with torch.device("meta"):
        return AutoModelForImageTextToText.from_config(copy.deepcopy(config), trust_remote_code=trust_remote_code)  # it writes a dtype into what it gets


def has_weights(folder: str | Path) -> bool:
    """Return whether a folder holds any weight file."""
    return any(True for pattern in ("*.safetensors", "*.bin") for _ in Path(folder).glob(pattern))


def quantisation(config: Any) -> str | None:
    """Return the name of the method by which a checkpoint's weights are quantised, or None."""
    settings = getattr(config, "quantization_config", None) or getattr(config.get_text_config(), "quantization_config", None)
    if settings is None:
        return None
    method = settings.get("quant_method") if isinstance(settings, dict) else getattr(settings, "quant_method", None)
    return str(getattr(method, "value", method) or "an unnamed method")


def check_split(blank: nn.Module, ranks: int) -> None:
    """Raise ValueError unless ``ranks`` processes can share the experts of a model on the meta device."""
    check_ep_size(ranks, dissect(blank).num_experts, "ranks")
    if ranks > 1 and (method := quantisation(blank.config)):
        raise ValueError(f"This checkpoint is quantised ({method}), and quantised experts are not split over ranks; use --ranks 1.")


def _placement(blank: nn.Module, config: Any, device: Any, device_map: str | None, ranks: int, exchange: str) -> dict[str, Any]:
    """Return how from_pretrained puts weights where they belong; nothing if the whole model is moved afterwards."""
    if ranks > 1 and device_map:
        raise ValueError("A device map lays one process's model over devices; leave it out, or use --ranks 1.")
    if ranks > 1:
        return {"distributed_config": distributed_config(blank, ranks, exchange)}
    if device_map:
        return {"device_map": device_map}
    return {"device_map": {"": device}} if quantisation(config) else {}  # some quantised modules cannot be moved


def _expert_parameters(blank: nn.Module) -> int:
    return sum(parameter.numel() for layer in dissect(blank).layers for parameter in layer.experts.parameters())


def count_experts(name_or_path: str | Path, trust_remote_code: bool = False) -> int:
    """Return the number of routed experts of a layer, from the config alone; raises ValueError as ``load`` does."""
    return dissect(without_weights(read_source(str(name_or_path), trust_remote_code).config, trust_remote_code)).num_experts


def check_ranks(name_or_path: str | Path, ranks: int, trust_remote_code: bool = False) -> None:
    """Raise ValueError, from the config alone, unless ``ranks`` processes can share the experts."""
    check_split(without_weights(read_source(str(name_or_path), trust_remote_code).config, trust_remote_code), ranks)


def read_calibration(loaded: Loaded) -> dict[int, torch.Tensor] | None:
    """Return m_j [N] int8 by decoder layer from this model's calibration, or None if it has none."""
    calibration = find_calibration(loaded.folder)
    return None if calibration is None else calibration.groups


def _limit_image(processor: Any, anatomy: Anatomy) -> int:
    """Hold the processor to MAX_VISUAL_TOKENS where its size is an area, and return the most tokens of an image."""
    images = getattr(processor, "image_processor", None)
    size, patch = getattr(images, "size", None), getattr(images, "patch_size", None)
    if anatomy.family.grid != "merged" or not isinstance(patch, int) or "longest_edge" not in (size or {}):
        return MAX_VISUAL_TOKENS
    area = (patch * anatomy.merge_size) ** 2  # pixels of one visual token; these processors name areas as edges
    size["longest_edge"] = min(size["longest_edge"], MAX_VISUAL_TOKENS * area)
    return size["longest_edge"] // area


def _limit_prompt(config: Any, max_visual: int) -> int:
    """Return the most prompt tokens for which image, template and an answer still fit the positions the model knows."""
    positions = getattr(config.get_text_config(), "max_position_embeddings", None) or MAX_PROMPT_TOKENS
    return min(MAX_PROMPT_TOKENS, max(positions - max_visual - ANSWER_ROOM, positions // 4))


def _snapshot(name: str) -> Path:
    """Return the folder in which the hub client keeps what was just loaded."""
    from huggingface_hub import try_to_load_from_cache

    return Path(try_to_load_from_cache(name, "config.json")).parent


def _shown(name: str) -> str:
    return f"The folder {Path(name).name!r}" if Path(name).is_dir() else repr(name)


def _first_line(error: Exception, name: str) -> str:
    """Return what an error says first, without the path of the user's folder."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = (lines[0] if lines else type(error).__name__)[:300]
    return said.replace(str(Path(name)), Path(name).name) if Path(name).is_dir() else said
