"""Where a model keeps its routers, its experts and its language model; raises when it has none."""

from __future__ import annotations

import inspect
import math
import re
from dataclasses import dataclass

from torch import nn

from macs.model.families import EXPERT_COUNTS, IMAGE_TOKENS, MERGE_SIZES, TOP_KS, VIDEO_TOKENS, Family, family_of, first_number

_ROUTER_NAMES = ("gate", "router")


@dataclass(frozen=True)
class MoeLayer:
    """One layer with routed experts; shared experts are elsewhere and never touched."""

    index: int  # of the decoder layer
    router: nn.Module
    experts: nn.Module


@dataclass(frozen=True)
class Anatomy:
    """What the seam and the checks need to know of a model; weights are not looked at, so a meta model will do."""

    family: Family
    text: nn.Module  # the language model; it is called with inputs_embeds
    layers: tuple[MoeLayer, ...]
    num_experts: int  # of all ranks together
    top_k: int
    image_token: int | None
    video_token: int | None
    merge_size: int | None  # patches a side that become one visual token
    tile_side: int | None  # visual tokens a side of one tile, in families that cut pictures into tiles
    vision_tower: nn.Module | None  # called with grid_thw; None where the family has no such call

    @property
    def visual_tokens(self) -> tuple[int, ...]:
        """Return the vocabulary ids that stand for visual tokens."""
        return tuple(token for token in (self.image_token, self.video_token) if token is not None)


def dissect(model: nn.Module) -> Anatomy:
    """Return the parts of ``model``; raises ValueError with one sentence if it holds no routed experts to schedule."""
    config = getattr(model, "config", None)
    if config is None or not hasattr(model, "get_decoder"):
        raise ValueError(f"{type(model).__name__} is not a transformers model; pass one that from_pretrained returns.")
    family = family_of(config)
    text = model.get_decoder()
    text_config = config.get_text_config()
    num_experts, top_k = first_number(text_config, EXPERT_COUNTS), first_number(text_config, TOP_KS)
    layers = _moe_layers(text)
    if not layers:
        raise ValueError(
            f"{type(model).__name__} has no mixture-of-experts layer: no module named 'experts' that is called with "
            "(hidden, expert ids, weights) beside a 'gate' or 'router'. Choose a mixture-of-experts model."
        )
    if not num_experts or not top_k:
        lacking = "number of experts" if not num_experts else "number of experts per token"
        names = EXPERT_COUNTS if not num_experts else TOP_KS
        raise ValueError(f"The config of {type(model).__name__} does not say the {lacking}: it has none of {', '.join(names)}. This model is not supported.")
    vision_config = getattr(config, "vision_config", None)
    return Anatomy(
        family=family,
        text=text,
        layers=layers,
        num_experts=num_experts,
        top_k=top_k,
        image_token=first_number(config, IMAGE_TOKENS),
        video_token=first_number(config, VIDEO_TOKENS),
        merge_size=first_number(vision_config, MERGE_SIZES),
        tile_side=math.isqrt(getattr(config, "image_seq_length", 0) or 0) or None,
        vision_tower=_named(model, family.vision_tower),
    )


def _moe_layers(text: nn.Module) -> tuple[MoeLayer, ...]:
    found = []
    for name, module in text.named_modules():
        parent_name, _, last = name.rpartition(".")
        if last != "experts" or not _takes_ids_and_weights(module):
            continue
        parent, layer = text.get_submodule(parent_name), re.search(r"(?:^|\.)(\d+)\.", name)
        router = next((getattr(parent, r) for r in _ROUTER_NAMES if isinstance(getattr(parent, r, None), nn.Module)), None)
        if router is not None and layer is not None:
            found.append(MoeLayer(int(layer[1]), router, module))
    return tuple(found)


def _takes_ids_and_weights(experts: nn.Module) -> bool:
    """Whether it can be called as (hidden, ids, weights); a ModuleList of single experts, called one by one, cannot."""
    if isinstance(experts, (nn.ModuleList, nn.ModuleDict)):
        return False
    try:
        inspect.signature(experts.forward).bind(None, None, None)
    except TypeError:
        return False
    return True


def _named(model: nn.Module, name: str | None) -> nn.Module | None:
    if name is None:
        return None
    return next((module for path, module in model.named_modules() if path.rpartition(".")[2] == name), None)
