"""MoE layers of published models, and transformers' experts modules of their sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import transformers
from torch import nn
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Experts
from transformers.models.qwen3_vl_moe.modeling_qwen3_vl_moe import Qwen3VLMoeTextExperts


@dataclass(frozen=True)
class Shape:
    """A published model's MoE layer."""

    hidden: int
    intermediate: int
    experts: int
    top_k: int
    make: Callable[[Any], nn.Module]  # transformers' experts module from its config
    config: Callable[[Shape, int], Any]


def qwen_config(shape: Shape, count: int) -> Any:
    text = {"hidden_size": shape.hidden, "moe_intermediate_size": shape.intermediate, "num_experts": count}
    return transformers.Qwen3VLMoeConfig(text_config=text).text_config


def kimi_config(shape: Shape, count: int) -> Any:
    return transformers.DeepseekV3Config(hidden_size=shape.hidden, moe_intermediate_size=shape.intermediate, n_routed_experts=count)


SHAPES = {
    "qwen3-vl-30b-a3b": Shape(2048, 768, 128, 8, Qwen3VLMoeTextExperts, qwen_config),
    "kimi-vl-a3b": Shape(2048, 1408, 64, 6, DeepseekV3Experts, kimi_config),
}
