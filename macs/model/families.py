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
    published: str = ""  # checkpoints that it was written for
    scoring: str | None = None  # softmax, sigmoid or given; None: found by the self-check of macs.model.router
    router: str = ""  # the same in words, with what becomes of the top-k weights
    weight_scale: str | None = None  # router attribute [N] by which an expert's weight is multiplied after the score
    grid: str | None = None  # how visual tokens lie: merged, pooled or tiled (see macs.model.views); None: no place is known
    no_grid: str = ""  # one clause: why there is none
    padded: bool = False  # pictures are padded at the right and the bottom to whole cells
    vision_tower: str | None = None  # module that is called with grid_thw, for a forward that never sees the grids
    video: bool = True  # it takes video, and each frame lies as a picture of its own
    frames_as_images: bool = False  # frames carry the id of image tokens; pictures and a video together are refused
    video_but: str = ""  # one clause: which checkpoints of it take none
    pools_time: bool = False  # a row of video_grid_thw is one view: its frames are averaged
    unusable: str | None = None  # one sentence: why it is refused


_MERGED = {"grid": "merged", "vision_tower": "visual"}
_QUERIES = "its visual tokens are learned queries that belong to no place of the picture"

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family("qwen3_vl_moe", "Qwen3-VL MoE", "Qwen3-VL-30B-A3B, 235B-A22B", "softmax", "softmax, normalised", **_MERGED),
        Family("internvl", "InternVL with a MoE language model", "InternVL3.5-30B-A3B-HF", None, "the language model's: softmax", grid="tiled", frames_as_images=True),
        Family(
            "kimi_k25",
            "Kimi-VL and Kimi K2.5",
            "Kimi-VL-A3B-Instruct",
            "sigmoid",
            "sigmoid with selection bias and groups, normalised, scaled",
            grid="merged",
            padded=True,
            vision_tower="vision_tower",
            video_but="Kimi-VL has no token for frames",
            pools_time=True,
        ),
        Family("qwen3_5_moe", "Qwen3.5 MoE", "Qwen3.5-35B-A3B", "softmax", "softmax, normalised; a gated shared expert", **_MERGED),
        Family("qwen3_omni_moe_thinker", "Qwen3-Omni thinker", "Qwen3-Omni-30B-A3B", "softmax", "softmax, normalised", **_MERGED),
        Family("glm4v_moe", "GLM-4.5V and GLM-4.6V", "GLM-4.5V", "sigmoid", "sigmoid with selection bias and groups, normalised, scaled", frames_as_images=True, **_MERGED),
        Family("gemma4", "Gemma 4 MoE", "gemma-4-26B-A4B", "given", "softmax, normalised, × a scale per expert", "per_expert_scale", grid="pooled"),
        Family("aria", "Aria", "Aria", "softmax", "softmax over the chosen", no_grid=_QUERIES, video=False),
        Family("deepseek_ocr2", "DeepSeek-OCR-2", "DeepSeek-OCR-2", "softmax", "softmax, not normalised, scaled", no_grid=_QUERIES, video=False),
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

# Where the families keep the same few numbers.
EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
TOP_KS = ("num_experts_per_tok", "top_k_experts", "moe_topk", "moe_k")
IMAGE_TOKENS = ("image_token_id", "image_token_index")
VIDEO_TOKENS = ("video_token_id", "video_token_index")
MERGE_SIZES = ("spatial_merge_size", "merge_size", "merge_kernel_size", "pooling_kernel_size")


def family_of(config: Any) -> Family:
    """Return the row of this config's ``model_type``, or a row that promises nothing; raises ValueError if refused."""
    family = FAMILIES.get(config.model_type) or Family(config.model_type, video=False)
    if family.unusable:
        raise ValueError(family.unusable)
    return family


def first_number(config: Any, names: tuple[str, ...]) -> int | None:
    """Return the first of these fields that the config holds as a number, or as a list of equal ones, or None."""
    for name in names:
        value = getattr(config, name, None)
        if isinstance(value, (list, tuple)) and len(set(value)) == 1:
            value = value[0]
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None
