"""One small checkpoint per family, written as published ones are: config.json, the published names and orientation, a real processor.

Experts are odd in number of layers, differ from hidden and intermediate size, and have a dense first layer where the
family has one. Where each visual token lies is counted here from the picture's size, not from the processor.
"""

from __future__ import annotations

import base64
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

import torch
import transformers as hf
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers.models.qwen3_omni_moe import Qwen3OmniMoeThinkerConfig

from tests import tiny
from tests.tiny import _MROPE as MROPE
from tests.tiny import _TEXT as TEXT

IDS = {"image_token_id": tiny.IMAGE, "video_token_id": tiny.VIDEO}
QWEN_VISION = {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": 8, "out_hidden_size": tiny.HIDDEN, "num_position_embeddings": 64}
INTERLEAVED = MROPE | {"mrope_interleaved": True}
NO_HEAD_DIM = {key: value for key, value in TEXT.items() if key != "head_dim"}

Box = tuple[float, float, float, float]
Map = list[tuple[int, int, Box]]  # rows, columns and the part of the picture that a rectangle of tokens shows


# --- models


def qwen3_5() -> Any:
    """Qwen3.5-MoE: linear attention but in one layer, a gated shared expert."""
    linear = {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4}
    rope = INTERLEAVED | {"mrope_section": [1, 1, 0], "partial_rotary_factor": 0.25}
    kinds = ["linear_attention", "full_attention", "linear_attention"]
    experts = {"num_experts": tiny.EXPERTS, "num_experts_per_tok": tiny.TOP_K, "shared_expert_intermediate_size": 24}
    config = hf.Qwen3_5MoeConfig(
        text_config=TEXT | experts | linear | {"layer_types": kinds, "rope_parameters": rope},
        vision_config=QWEN_VISION, vision_start_token_id=tiny.START, vision_end_token_id=tiny.END, **IDS,
    )  # fmt: skip
    return hf.Qwen3_5MoeForConditionalGeneration(config)


def omni() -> Any:
    """The thinker of Qwen3-Omni."""
    audio = {"num_mel_bins": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 32, "d_model": 16,
             "output_dim": tiny.HIDDEN, "downsample_hidden_size": 8}  # fmt: skip
    config = Qwen3OmniMoeThinkerConfig(
        text_config=TEXT | {"num_experts": tiny.EXPERTS, "num_experts_per_tok": tiny.TOP_K, "rope_parameters": INTERLEAVED},
        vision_config=QWEN_VISION | {"deepstack_visual_indexes": [0]}, audio_config=audio, audio_token_id=263, vision_start_token_id=tiny.START, vision_end_token_id=tiny.END, **IDS,
    )  # fmt: skip
    return hf.Qwen3OmniMoeThinkerForConditionalGeneration(config)


def kimi(q_lora_rank: int | None) -> Any:
    """Kimi-K2.5's class: latent attention, first layer dense, one shared expert; ``q_lora_rank`` None is Kimi-VL."""
    experts = {"n_routed_experts": tiny.EXPERTS, "num_experts_per_tok": tiny.TOP_K, "n_shared_experts": 1, "first_k_dense_replace": 1,
               "n_group": 2 if q_lora_rank else 1, "topk_group": 1, "routed_scaling_factor": 2.446, "norm_topk_prob": True}  # fmt: skip
    latent = {"q_lora_rank": q_lora_rank, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "num_key_value_heads": 4}
    vision = {"num_attention_heads": 2, "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 48, "patch_size": 14, "pos_emb_height": 8, "pos_emb_width": 8}
    config = hf.Kimi_K25Config(
        text_config=NO_HEAD_DIM | experts | latent | {"model_type": "deepseek_v3"},
        vision_config=vision, projection_hidden_size=32, tie_word_embeddings=False, **IDS,
    )  # fmt: skip
    return hf.Kimi_K25ForConditionalGeneration(config)


def aria() -> Any:
    """Aria: learned queries in the place of patches, 5 or 9 a picture."""
    text = {key: value for key, value in TEXT.items() if key != "moe_intermediate_size"}
    config = hf.AriaConfig(
        text_config=text | {"intermediate_size": 40, "moe_num_experts": tiny.EXPERTS, "moe_topk": tiny.TOP_K, "moe_num_shared_experts": 1},
        vision_config={"model_type": "idefics3_vision", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
                       "image_size": 980, "patch_size": 70},
        projector_patch_to_query_dict={49: 5, 196: 9}, image_token_index=tiny.IMAGE,
    )  # fmt: skip
    return hf.AriaForConditionalGeneration(config)


def ocr2() -> Any:
    """DeepSeek-OCR-2: learned queries, 144 a tile, 256 for the whole and one separator; first layer dense."""
    experts = {"n_routed_experts": tiny.EXPERTS, "num_experts_per_tok": tiny.TOP_K, "n_shared_experts": 1, "mlp_layer_types": ["dense", "sparse", "sparse"]}
    sam = {"hidden_size": 16, "output_channels": 16, "num_hidden_layers": 1, "num_attention_heads": 1, "global_attn_indexes": [], "downsample_channels": [24, 32],
           "mlp_dim": 16, "window_size": 14}  # fmt: skip
    encoder = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = hf.DeepseekOcr2Config(text_config=NO_HEAD_DIM | experts, vision_config={"sam_config": sam, "encoder_config": encoder}, image_token_id=tiny.IMAGE)
    return hf.DeepseekOcr2ForConditionalGeneration(config)


# --- published names


def per_expert(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Stacked experts as one [out, in] matrix per expert and projection."""
    out = {}
    for name, value in state.items():
        head, found, kind = name.rpartition(".experts.")
        if not found:
            out[name] = value
        elif kind == "down_proj":
            out |= {f"{head}.experts.{e}.down_proj.weight": w for e, w in enumerate(value)}
        else:
            for e, w in enumerate(value):
                out[f"{head}.experts.{e}.gate_proj.weight"], out[f"{head}.experts.{e}.up_proj.weight"] = w.chunk(2)
    return out


def transposed(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Stacked experts as [N, in, out]."""
    return {name: value.transpose(1, 2) if ".experts." in name else value for name, value in state.items()}


def thinker(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"thinker.{name}": value for name, value in per_expert(state).items()}


def kimi_names(projector: dict[str, str]) -> Callable:
    """MoonViT's and DeepSeek-V3's names under one roof; ``projector`` names what lies between them."""
    rules = [
        (r"^model\.language_model\.", "language_model.model."),
        (r"^lm_head", "language_model.lm_head"),
        (r"^model\.vision_tower\.layers\.(\d+)\.norm1", r"vision_tower.encoder.blocks.\1.norm0"),
        (r"^model\.vision_tower\.layers\.(\d+)\.norm2", r"vision_tower.encoder.blocks.\1.norm1"),
        (r"^model\.vision_tower\.layers\.(\d+)\.mlp\.fc1", r"vision_tower.encoder.blocks.\1.mlp.fc0"),
        (r"^model\.vision_tower\.layers\.(\d+)\.mlp\.fc2", r"vision_tower.encoder.blocks.\1.mlp.fc1"),
        (r"^model\.vision_tower\.layers\.(\d+)\.attn\.proj", r"vision_tower.encoder.blocks.\1.wo"),
        (r"^model\.vision_tower\.final", "vision_tower.encoder.final"),
        (r"^model\.vision_tower\.patch_embed\.pos_emb\.position_embeddings", "vision_tower.patch_embed.pos_emb.weight"),
        (r"^model\.vision_tower\.patch_embed", "vision_tower.patch_embed"),
        *((rf"^model\.mm_projector\.{ours}", theirs) for ours, theirs in projector.items()),
    ]

    def published(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        state, out = per_expert(state), {}
        for name, value in state.items():
            if re.search(r"vision_tower.*attn\.[qkv]_proj", name):
                parts = [state[name.replace(".q_proj", f".{part}_proj")] for part in "qkv"] if ".q_proj" in name else []
                if parts:
                    number, kind = re.search(r"layers\.(\d+)\.attn\.q_proj\.(\w+)", name).groups()
                    out[f"vision_tower.encoder.blocks.{number}.wqkv.{kind}"] = torch.cat([neighbours(parts[0]), neighbours(parts[1]), parts[2]])
                continue
            out[next(re.sub(rule, to, name) for rule, to in rules if re.search(rule, name))] = value
        return out

    return published


def neighbours(rows: torch.Tensor, heads: int = 2) -> torch.Tensor:
    """Rows that are rotated together side by side, as MoonViT's complex rotation has them, not half a head apart."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


K25 = kimi_names({"in_proj": "mm_projector.proj.0", "out_proj": "mm_projector.proj.2", "pre_norm": "mm_projector.pre_norm"})
KIMI_VL = kimi_names({"in_proj": "multi_modal_projector.linear_1", "out_proj": "multi_modal_projector.linear_2", "pre_norm": "multi_modal_projector.pre_norm"})


# --- processors


def tokenizer(image: str, video: str, start: str, end: str, **named: str) -> Any:
    """One token a byte, the family's own control tokens at the ids of ``tests.tiny``; ``named`` adds more, with their roles."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bare = Tokenizer(models.BPE(vocab={character: i for i, character in enumerate(alphabet)}, merges=[]))
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bare.decoder = decoders.ByteLevel()
    names = [*tiny.SPECIAL[:3], start, end, image, video, *(n for n in named.values() if n not in (image, video, start, end))]
    bare.add_special_tokens(names)
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=bare, eos_token=tiny.SPECIAL[2], pad_token=tiny.SPECIAL[0], padding_side="left", additional_special_tokens=names[1:],
        extra_special_tokens=named,
    )  # fmt: skip


def template(picture: str, video: str = "") -> str:
    return tiny.TEMPLATE.replace("<|vision_start|><|image_pad|><|vision_end|>", picture).replace("<|vision_start|><|video_pad|><|vision_end|>", video)


AREA = {"shortest_edge": 4 * 256, "longest_edge": 400 * 256}


def glm_processor() -> Any:
    clip = {"begin_video": "<|begin_of_video|>", "end_video": "<|end_of_video|>"}
    words = tokenizer("<|image|>", "<|video|>", "<|begin_of_image|>", "<|end_of_image|>", **clip)
    sizes = {"patch_size": 8, "merge_size": 2, "temporal_patch_size": 2, "size": AREA}
    pictures = template("<|begin_of_image|><|image|><|end_of_image|>", "<|begin_of_video|><|video|><|end_of_video|>")
    return hf.Glm4vProcessor(hf.Glm4vImageProcessor(**sizes), words, hf.Glm4vVideoProcessor(**sizes), chat_template=pictures)


def internvl_processor(side: int = 32, tokens: int = 16) -> Any:
    roles = {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>", "video_token": "<video>"}
    words = tokenizer("<IMG_CONTEXT>", "<video>", "<img>", "</img>", **roles)
    size = {"height": side, "width": side}
    images = hf.GotOcr2ImageProcessor(size=size, min_patches=1, max_patches=6, crop_to_patches=True)
    return hf.InternVLProcessor(images, words, hf.InternVLVideoProcessor(size=size), image_seq_length=tokens, chat_template=template("<IMG_CONTEXT>", "<video>"))


def kimi_words() -> Any:
    return tokenizer("<|media_pad|>", "<|kimi_k25_video_placeholder|>", "<|media_begin|>", "<|media_end|>")


KIMI_TEMPLATE = template("<|media_begin|><|media_pad|><|media_end|>", "<|kimi_k25_video_placeholder|>")


def kimi_processor() -> Any:
    return hf.Kimi_K25Processor(hf.Kimi_K25ImageProcessor(max_patches=400), kimi_words(), hf.Kimi_K25VideoProcessor(), chat_template=KIMI_TEMPLATE)


def omni_processor() -> Any:
    roles = {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>", "audio_token": "<|audio_pad|>", "vision_bos_token": "<|vision_start|>",
             "vision_eos_token": "<|vision_end|>", "audio_bos_token": "<|audio_start|>", "audio_eos_token": "<|audio_end|>"}  # fmt: skip
    words = tokenizer("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>", **roles)
    sizes = {"patch_size": 8, "merge_size": 2, "temporal_patch_size": 2, "size": AREA}
    sound = hf.WhisperFeatureExtractor(feature_size=16)
    return hf.Qwen3OmniMoeProcessor(hf.Qwen2VLImageProcessor(**sizes), hf.Qwen2VLVideoProcessor(**sizes), sound, words, chat_template=tiny.TEMPLATE)


def gemma_processor() -> Any:
    roles = {"image_token": "<|image|>", "boi_token": "<|image>", "eoi_token": "<image|>", "audio_token": "<|audio|>", "boa_token": "<|audio>", "eoa_token": "<audio|>"}
    words = tokenizer("<|image|>", "<|video|>", "<|image>", "<image|>", **roles)
    images = hf.Gemma4ImageProcessor(patch_size=4, max_soft_tokens=70, pooling_kernel_size=3)
    return hf.Gemma4Processor(hf.Gemma4AudioFeatureExtractor(), images, words, hf.Gemma4VideoProcessor(patch_size=4), chat_template=template("<|image|>", "<|video|>"), image_seq_length=70)


def aria_processor() -> Any:
    words = tokenizer("<|img|>", "<|video|>", "<fim_prefix>", "<fim_suffix>", image_token="<|img|>")
    return hf.AriaProcessor(hf.AriaImageProcessor(max_image_size=490), words, template("<fim_prefix><|img|><fim_suffix>"), size_conversion={490: 5, 980: 9})


def ocr2_processor() -> Any:
    words = tokenizer("<image>", "<|video|>", "<|s|>", "<|e|>", image_token="<image>")
    return hf.DeepseekOcr2Processor(hf.DeepseekOcr2ImageProcessor(), words, chat_template=template("<image>"))


# --- where tokens lie, from the picture alone


def whole(rows: int, columns: int) -> Map:
    return [(rows, columns, (0.0, 0.0, 1.0, 1.0))]


def qwen_map(width: int, height: int) -> Map:
    """Cells of 16 pixels, each side rounded to whole cells; the test's pictures are within the area's limits."""
    return whole(round(height / 16), round(width / 16))


def kimi_map(width: int, height: int) -> Map:
    """Cells of 28 pixels, the last ones padded."""
    rows, columns = math.ceil(height / 28), math.ceil(width / 28)
    return [(rows, columns, (0.0, 0.0, columns * 28 / width, rows * 28 / height))]


def gemma_map(width: int, height: int) -> Map:
    """Cells of 12 pixels in the largest size of the same shape that makes at most 70."""
    scale = math.sqrt(70 * 144 / (width * height))
    return whole(math.floor(height * scale / 12), math.floor(width * scale / 12))


def internvl_map(width: int, height: int) -> Map:
    """4 × 4 tokens a tile; of up to 6 tiles 3 × 2 is nearest to 100 × 60 in shape (1.5; 2 × 1 has 2, the picture 1.67); then the whole."""
    assert (width, height) == (100, 60)
    return [(4, 4, (0.0, 0.0, 1 / 3, 0.5)), (4, 4, (1 / 3, 0.0, 2 / 3, 0.5)), (4, 4, (2 / 3, 0.0, 1.0, 0.5)),
            (4, 4, (0.0, 0.5, 1 / 3, 1.0)), (4, 4, (1 / 3, 0.5, 2 / 3, 1.0)), (4, 4, (2 / 3, 0.5, 1.0, 1.0)), *whole(4, 4)]  # fmt: skip


@dataclass(frozen=True)
class Checkpoint:
    """A family's model, how its files are named, its processor, and what must be found in it."""

    family: str  # the row of macs.model.families
    model: Callable[[], Any]
    published: Callable[[dict], dict]
    processor: Callable[[], Any]
    layers: tuple[int, ...]  # MoE layers
    reading: tuple[str, bool]  # scoring, and whether top-k weights are normalised
    cells: Callable[[int, int], Map] | None = None  # None: visual tokens have no place
    queries: int = 0  # then their number
    config: Callable[[Any], dict] = lambda model: model.config.to_dict()

    def write(self, folder: Path, seed: int = 11) -> Any:
        """Write the folder and return the model whose weights are in it."""
        model = tiny._randomised(self.model(), seed)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config(model)))
        state = {name: value.contiguous().clone() for name, value in self.published(model.state_dict()).items()}
        save_file(state, folder / "model.safetensors", {"format": "pt"})
        self.processor().save_pretrained(folder)
        return model


def plain(state: dict) -> dict:
    return state


def omni_config(model: Any) -> dict:
    return {"model_type": "qwen3_omni_moe", "thinker_config": model.config.to_dict(), "enable_audio_output": False, "dtype": "float32"}


def kimi_vl_config(model: Any) -> dict:
    """As the published repository writes it: own model_type, own names of fields."""
    own = model.config.to_dict()
    vision = {key: own["vision_config"][key] for key in ("patch_size", "num_attention_heads", "num_hidden_layers", "hidden_size", "intermediate_size", "merge_kernel_size")}
    vision |= {"model_type": "moonvit", "init_pos_emb_height": 8, "init_pos_emb_width": 8}
    text = {key: value for key, value in own["text_config"].items() if key not in ("rope_parameters", "dtype")}
    text |= {"model_type": "deepseek_v3", "rope_theta": 10000.0, "scoring_func": "sigmoid", "topk_method": "noaux_tc"}
    code = {"AutoConfig": "configuration_kimi_vl.KimiVLConfig", "AutoModelForCausalLM": "modeling_kimi_vl.KimiVLForConditionalGeneration"}
    return {"architectures": ["KimiVLForConditionalGeneration"], "model_type": "kimi_vl", "auto_map": code, "media_placeholder_token_id": tiny.IMAGE,
            "text_config": text, "vision_config": vision, "torch_dtype": "float32", "ignore_index": -100}  # fmt: skip


def tiktoken_files(folder: Path, tokens: list[bytes], special: dict[str, int], **settings: Any) -> None:
    """Write tiktoken.model, a line of base64 and rank per token, and a tokenizer_config.json that names a class of the repository's own code."""
    lines = [base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens)]
    (folder / "tiktoken.model").write_bytes(b"".join(lines))
    entry = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    own = {"tokenizer_class": "TikTokenTokenizer", "auto_map": {"AutoTokenizer": ["tokenization_moonshot.TikTokenTokenizer", None]}}
    named = {"additional_special_tokens": [name for name in special if name.startswith("<|")], "pad_token": "[PAD]", "bos_token": "[BOS]"}
    added = {str(i): entry | {"content": name} for name, i in special.items()}
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added, **own, **named, **settings}))


class KimiVLProcessor:
    """What the published repository holds in the place of a processor that transformers knows."""

    def save_pretrained(self, folder: Path) -> None:
        names = ["[PAD]", "[BOS]", "<|im_end|>", "<|media_begin|>", "<|media_end|>", "<|media_pad|>", "<|im_user|>"]
        tiktoken_files(folder, [bytes([b]) for b in range(256)], dict(zip(names, range(256, 263))), eos_token="<|im_end|>", chat_template=KIMI_TEMPLATE)
        images = {"image_processor_type": "KimiVLImageProcessor", "in_token_limit": 400, "merge_kernel_size": [2, 2], "patch_size": 14, "pad_input": True,
                  "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "num_pooled_tokens": 1024}  # fmt: skip
        (folder / "preprocessor_config.json").write_text(json.dumps(images))


CHECKPOINTS = {
    "qwen3-vl": Checkpoint("qwen3_vl_moe", tiny.qwen, transposed, tiny.processor, (0, 2), ("softmax", True), qwen_map),
    "internvl": Checkpoint("internvl", tiny.internvl, per_expert, internvl_processor, (0, 1, 2), ("softmax", False), internvl_map),
    "kimi-vl": Checkpoint("kimi_k25", lambda: kimi(None), KIMI_VL, KimiVLProcessor, (1, 2), ("sigmoid", True), kimi_map, config=kimi_vl_config),
    "kimi-k2.5": Checkpoint("kimi_k25", lambda: kimi(24), K25, kimi_processor, (1, 2), ("sigmoid", True), kimi_map),
    "qwen3.5": Checkpoint("qwen3_5_moe", qwen3_5, plain, tiny.processor, (0, 1, 2), ("softmax", True), qwen_map),
    "qwen3-omni": Checkpoint("qwen3_omni_moe_thinker", omni, thinker, omni_processor, (0, 1, 2), ("softmax", True), qwen_map, config=omni_config),
    "glm-4.5v": Checkpoint("glm4v_moe", tiny.glm, per_expert, glm_processor, (1, 2), ("sigmoid", True), qwen_map),
    "gemma-4": Checkpoint("gemma4", tiny.gemma, plain, gemma_processor, (0, 1, 2), ("given", True), gemma_map),
    "aria": Checkpoint("aria", aria, plain, aria_processor, (0, 1, 2), ("softmax", True), queries=9),
    "deepseek-ocr-2": Checkpoint("deepseek_ocr2", ocr2, plain, ocr2_processor, (1, 2), ("softmax", False), queries=257),
}
