"""Published checkpoints whose config or names are not those of the transformers class that runs them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping

from transformers import AutoConfig, PreTrainedConfig


@dataclass(frozen=True)
class Source:
    """What is loaded: the config of the class that runs it, and how its weights' names become that class's."""

    config: Any
    renamed: Mapping[str, str] | None = None
    published: str = ""  # the model_type that its config.json names, where another class runs it


def open_source(name: str, *, local: bool, trust_remote_code: bool = False) -> Source:
    """Return the source of a folder or hub id, from its config alone; raises what AutoConfig raises."""
    raw, _ = PreTrainedConfig.get_config_dict(name, local_files_only=local)
    kind = raw.get("model_type")
    if kind == "kimi_vl" and not trust_remote_code:
        return Source(_kimi_vl(raw), _KIMI_VL_RENAMED, kind)
    config = AutoConfig.from_pretrained(name, local_files_only=local, trust_remote_code=trust_remote_code)
    if kind == "qwen3_omni_moe":  # the thinker alone: it reads text, pictures and sound; the talker speaks
        thinker = config.thinker_config
        thinker.dtype = thinker.dtype or config.dtype
        return Source(thinker, None, kind)
    if "tie_word_embeddings" not in raw and raw.get("text_config", {}).get("tie_word_embeddings") is False:
        config.tie_word_embeddings = False  # InternVL: only the language model's config says so, the whole one's default is True
    return Source(config)


# Kimi-VL's repository has code of its own; transformers' Kimi-K2.5 class computes the same with these names and fields.
_KIMI_VL_RENAMED = {
    "multi_modal_projector.linear_1": "mm_projector.proj.0",
    "multi_modal_projector.linear_2": "mm_projector.proj.2",
    "multi_modal_projector.pre_norm": "mm_projector.pre_norm",
}
_KIMI_VL_VISION = ("patch_size", "num_attention_heads", "num_hidden_layers", "hidden_size", "intermediate_size", "merge_kernel_size")
_KIMI_VL_NOT_TEXT = ("auto_map", "architectures", "model_type", "quantization_config", "topk_method", "scoring_func", "seq_aux")


def _kimi_vl(raw: Mapping[str, Any]) -> Any:
    from transformers import Kimi_K25Config

    text = {key: value for key, value in raw["text_config"].items() if key not in _KIMI_VL_NOT_TEXT}
    vision = {key: raw["vision_config"][key] for key in _KIMI_VL_VISION if key in raw["vision_config"]}
    vision |= {f"pos_emb_{side}": raw["vision_config"][f"init_pos_emb_{side}"] for side in ("height", "width")}
    quantised = {"quantization_config": raw["quantization_config"]} if "quantization_config" in raw else {}
    return Kimi_K25Config(
        text_config=text | {"model_type": "deepseek_v3"},
        vision_config=vision,
        projection_hidden_size=vision["hidden_size"],
        image_token_id=raw["media_placeholder_token_id"],
        tie_word_embeddings=False,
        dtype=raw.get("torch_dtype", raw.get("dtype")),
        architectures=["Kimi_K25ForConditionalGeneration"],
        **quantised,
    )


def open_processor(name: str, source: Source, *, local: bool, trust_remote_code: bool = False) -> Any:
    """Return the processor of a folder or hub id; raises what AutoProcessor raises."""
    from transformers import AutoProcessor

    options = {"local_files_only": local, "trust_remote_code": trust_remote_code}
    os.environ.setdefault("TIKTOKEN_CACHE_DIR", "")  # tiktoken would keep a copy by path and read it after the file has changed
    processor = _kimi_vl_processor(name, source, options) if source.published == "kimi_vl" else AutoProcessor.from_pretrained(name, **options)
    if source.config.model_type == "kimi_k25":
        _split_as_kimi(processor.tokenizer)
    return processor


# How Kimi's published tokenizers cut text before they merge bytes; transformers reads their files with a general pattern,
# in which Chinese characters run together with the words around them.
_LETTERS = r"\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]"
_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
KIMI_SPLIT = "|".join(
    (
        r"[\p{Han}]+",
        rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}{_LETTERS}]*[\p{{Ll}}{_LETTERS}]+{_SUFFIX}",
        rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}{_LETTERS}]+[\p{{Ll}}{_LETTERS}]*{_SUFFIX}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)


def _split_as_kimi(tokenizer: Any) -> None:
    """Give a tokenizer that was read from tiktoken's file the split of its published code; one with a tokenizer.json has its own."""
    from tokenizers import Regex, pre_tokenizers

    if Path(getattr(tokenizer, "vocab_file", None) or "").name == "tiktoken.model":
        words = pre_tokenizers.Split(Regex(KIMI_SPLIT), "isolated")
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _kimi_vl_processor(name: str, source: Source, options: Mapping[str, Any]) -> Any:
    """Return Kimi-K2.5's processor with the sizes that Kimi-VL's preprocessor_config.json gives."""
    from transformers import AutoTokenizer, Kimi_K25ImageProcessor, Kimi_K25Processor, Kimi_K25VideoProcessor
    from transformers.image_processing_base import ImageProcessingMixin

    given, _ = ImageProcessingMixin.get_image_processor_dict(name, local_files_only=options["local_files_only"])
    merge = given.get("merge_kernel_size", [2, 2])
    sizes = {"patch_size": given.get("patch_size", 14), "merge_size": merge[0], "max_patches": given.get("in_token_limit", 4096)}
    normal = {key: given[key] for key in ("image_mean", "image_std") if key in given}
    tokenizer = AutoTokenizer.from_pretrained(name, config=source.config, **options)
    images = Kimi_K25ImageProcessor(**sizes, **normal)
    return Kimi_K25Processor(images, tokenizer, Kimi_K25VideoProcessor(), chat_template=tokenizer.chat_template)
