"""What differs between model families, as data; how to run them all the same way is in the other modules.

A family that is not listed works when it follows the common calls: a router named ``gate`` or ``router`` beside a
module named ``experts`` that is called with (hidden, expert ids, weights).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Family:
    """One row: how to read this family's router, tokens and patch grid."""

    name: str  # config.model_type
    title: str = ""
    scoring: str | None = None  # softmax, sigmoid or given; None: found by the self-check of macs.model.router
    weight_scale: str | None = None  # router attribute [N] by which an expert's weight is multiplied after the score
    grid: str | None = None  # "merged": row-major cells of a merged patch grid; None: not known here, no overlay
    vision_tower: str | None = None  # module that is called with grid_thw, for a forward that never sees the grids
    unusable: str | None = None  # one sentence: why it is refused


_MERGED = {"grid": "merged", "vision_tower": "visual"}

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family("qwen3_vl_moe", "Qwen3-VL MoE", scoring="softmax", **_MERGED),
        Family("qwen3_5_moe", "Qwen3.5 MoE", scoring="softmax", **_MERGED),
        Family("qwen3_omni_moe_thinker", "Qwen3-Omni thinker", scoring="softmax", **_MERGED),
        Family("glm4v_moe", "GLM-4.5V", scoring="sigmoid", **_MERGED),
        Family("kimi_k25", "Kimi K2.5 and Kimi-VL", scoring="sigmoid"),
        Family("internvl", "InternVL with a MoE language model"),
        Family("gemma4", "Gemma 4 MoE", scoring="given", weight_scale="per_expert_scale"),
        Family(
            "llama4",
            "Llama 4",
            unusable="Llama 4 computes every expert on every token in this version of transformers, so no pair can be dropped.",
        ),
        Family(
            "ernie4_5_vl_moe",
            "ERNIE 4.5 VL",
            unusable="ERNIE 4.5 VL routes text and images to separate experts, each of which sees only a part of the tokens; "
            "this is not supported yet.",
        ),
    )
}

# Where the families keep the same three numbers.
EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
TOP_KS = ("num_experts_per_tok", "top_k_experts", "moe_topk", "moe_k")
IMAGE_TOKENS = ("image_token_id", "image_token_index")
VIDEO_TOKENS = ("video_token_id", "video_token_index")
MERGE_SIZES = ("spatial_merge_size", "merge_size")


def family_of(config: Any) -> Family:
    """Return the row of this config's ``model_type``, or a row that promises nothing; raises ValueError if refused."""
    family = FAMILIES.get(config.model_type) or Family(config.model_type)
    if family.unusable:
        raise ValueError(family.unusable)
    return family


def first_number(config: Any, names: tuple[str, ...]) -> int | None:
    """Return the first of these fields that the config holds as a number, or None."""
    values = (getattr(config, name, None) for name in names)
    return next((int(value) for value in values if isinstance(value, int) and not isinstance(value, bool)), None)
