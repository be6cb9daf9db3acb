"""Small random models of several families, and a real Qwen3-VL processor with a byte tokenizer, for tests."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as hf
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
IMAGE, VIDEO, START, END = 261, 262, 259, 260
VOCABULARY, HIDDEN, EXPERTS, TOP_K = 272, 64, 8, 3
TEMPLATE = (
    "{%- for message in messages -%}<|im_start|>{{ message['role'] }}{{ '\\n' }}"
    "{%- for part in message['content'] -%}"
    "{%- if part['type'] == 'image' -%}<|vision_start|><|image_pad|><|vision_end|>"
    "{%- elif part['type'] == 'video' -%}<|vision_start|><|video_pad|><|vision_end|>{%- else -%}{{ part['text'] }}{%- endif -%}"
    "{%- endfor -%}<|im_end|>{{ '\\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistant{{ '\\n' }}{%- endif -%}"
)
_TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "moe_intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 4096,
    "pad_token_id": 256,
    "eos_token_id": 258,
    "bos_token_id": None,
}
_MROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]}


@lru_cache
def processor() -> hf.Qwen3VLProcessor:
    """Qwen3-VL's processor: 8-pixel patches merged 2×2, 4 to 400 visual tokens an image, one token a byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={character: i for i, character in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    fast = hf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=SPECIAL[2], pad_token=SPECIAL[0], additional_special_tokens=list(SPECIAL[1:]), padding_side="left"
    )
    size = {"shortest_edge": 4 * 256, "longest_edge": 400 * 256}
    shared = {"patch_size": 8, "merge_size": 2, "temporal_patch_size": 2, "size": size}
    return hf.Qwen3VLProcessor(hf.Qwen2VLImageProcessor(**shared), fast, hf.Qwen3VLVideoProcessor(**shared), chat_template=TEMPLATE)


def picture(width: int = 64, height: int = 48, seed: int = 0) -> Image.Image:
    """Random pixels; 16 of them a side make one visual token of ``processor``."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def _randomised(model: Any, seed: int) -> Any:
    """Router weights large enough to choose, and nothing left at zero or one by initialisation."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = 1.0 if name.endswith(("gate.weight", "router.proj.weight")) else 0.2
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale + (1.0 if parameter.ndim == 1 else 0.0))
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(torch.randn(buffer.shape, generator=generator) * 0.3)
    return model.eval()


def qwen(*, seed: int = 0, dtype: torch.dtype = torch.float32, dense: tuple[int, ...] = (1,), **text: Any) -> Any:
    """Qwen3-VL-MoE of three layers, the second dense: softmax router, normalised."""
    config = hf.Qwen3VLMoeConfig(
        text_config=_TEXT | {"num_experts": EXPERTS, "num_experts_per_tok": TOP_K, "mlp_only_layers": list(dense), "rope_parameters": _MROPE | {"mrope_interleaved": True}} | text,
        vision_config={"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": 8, "out_hidden_size": HIDDEN,
                       "num_position_embeddings": 64, "deepstack_visual_indexes": [0]},
        image_token_id=IMAGE, video_token_id=VIDEO, vision_start_token_id=START, vision_end_token_id=END,
    )  # fmt: skip
    return _randomised(hf.Qwen3VLMoeForConditionalGeneration(config), seed).to(dtype)


def glm(seed: int = 1) -> Any:
    """GLM-4.5V: sigmoid router with selection bias, groups and scale, a shared expert, first layer dense."""
    config = hf.Glm4vMoeConfig(
        text_config=_TEXT | {"n_routed_experts": EXPERTS, "num_experts_per_tok": TOP_K, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 2,
                             "topk_group": 1, "routed_scaling_factor": 2.5, "norm_topk_prob": True, "rope_parameters": _MROPE | {"mrope_section": [2, 1, 1]}},
        vision_config={"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": 8, "out_hidden_size": HIDDEN, "image_size": 64},
        image_token_id=IMAGE, video_token_id=VIDEO, image_start_token_id=START, image_end_token_id=END,
    )  # fmt: skip
    return _randomised(hf.Glm4vMoeForConditionalGeneration(config), seed)


def internvl(seed: int = 2, side: int = 32, patch: int = 4) -> Any:
    """InternVL with Qwen3-MoE: softmax router that does not normalise; 16 visual tokens a 32-pixel tile, or 256 a published one of 448."""
    config = hf.InternVLConfig(
        text_config=_TEXT | {"model_type": "qwen3_moe", "num_experts": EXPERTS, "num_experts_per_tok": TOP_K, "norm_topk_prob": False},
        vision_config={"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48, "image_size": [side, side],
                       "patch_size": [patch, patch]},
        image_token_id=IMAGE, image_seq_length=(side // patch // 2) ** 2,
    )  # fmt: skip
    return _randomised(hf.InternVLForConditionalGeneration(config), seed)


def gemma(seed: int = 3) -> Any:
    """Gemma 4 MoE: the router returns probabilities and multiplies weights by a scale per expert."""
    config = hf.Gemma4Config(
        text_config=_TEXT | {"enable_moe_block": True, "num_experts": EXPERTS, "top_k_experts": TOP_K, "vocab_size_per_layer_input": VOCABULARY,
                             "hidden_size_per_layer_input": 0, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]},
        vision_config={"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 48,
                       "patch_size": 4, "position_embedding_size": 64},
        audio_config=None, image_token_id=IMAGE, video_token_id=VIDEO, boi_token_id=START, eoi_token_id=END, audio_token_id=263,
    )  # fmt: skip
    return _randomised(hf.Gemma4ForConditionalGeneration(config), seed)


def text_only(seed: int = 4) -> Any:
    """Qwen3-MoE, a language model that knows no images."""
    return _randomised(hf.Qwen3MoeForCausalLM(hf.Qwen3MoeConfig(**_TEXT, num_experts=EXPERTS, num_experts_per_tok=TOP_K)), seed)


@dataclass(frozen=True)
class Case:
    """A model and one batch for it, with the number of visual tokens and the decoder layers that are MoE."""

    model: Any
    batch: dict[str, Any]
    visual: int
    layers: tuple[int, ...]


def _ids(visual: int, before: int = 5, after: int = 9) -> torch.Tensor:
    text = np.random.default_rng(visual).integers(32, 120, before + after)
    return torch.tensor([[*text[:before], START, *[IMAGE] * visual, END, *text[before:]]])


def _patches(rows: int, columns: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows * 100 + columns)
    return {"pixel_values": torch.randn(rows * columns, 3 * 2 * 8 * 8, generator=generator), "image_grid_thw": torch.tensor([[1, rows, columns]])}


def merged_batch(rows: int, columns: int) -> dict[str, torch.Tensor]:
    """A batch for Qwen or GLM with one picture of rows × columns patches, a quarter as many visual tokens."""
    ids = _ids(rows * columns // 4)
    return {"input_ids": ids, "mm_token_type_ids": (ids == IMAGE).int(), **_patches(rows, columns)}


def case(family: str) -> Case:
    """Return the named family's model with a batch of one picture."""
    generator = torch.Generator().manual_seed(7)
    if family == "qwen3_vl_moe":
        return Case(qwen(), merged_batch(6, 8), 12, (0, 2))
    if family == "glm4v_moe":
        return Case(glm(), merged_batch(6, 8), 12, (1, 2))
    if family == "internvl":
        return Case(internvl(), {"input_ids": _ids(32), "pixel_values": torch.randn(2, 3, 32, 32, generator=generator)}, 32, (0, 1, 2))
    assert family == "gemma4", family
    rows, columns = 6, 9  # patches; pooled 3 by 3
    place = torch.tensor([[[x, y] for y in range(rows) for x in range(columns)]])
    batch = {"input_ids": _ids(6), "pixel_values": torch.rand(1, rows * columns, 48, generator=generator), "image_position_ids": place}
    return Case(gemma(), batch | {"mm_token_type_ids": (batch["input_ids"] == IMAGE).int()}, 6, (0, 1, 2))


FAMILIES = ("qwen3_vl_moe", "glm4v_moe", "internvl", "gemma4")


def save(model: Any, folder: Path) -> Path:
    """Write ``model`` and ``processor`` as a folder that loads."""
    model.save_pretrained(folder)
    processor().save_pretrained(folder)
    return folder
