"""Builds the embedded model from transformers' own parts: tokenizer, processor, configuration, untrained weights."""

import random
from pathlib import Path

import torch
from huggingface_hub import save_torch_state_dict
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen2VLImageProcessor,
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
)

from .canvas import CELL
from .questions import ask_scene, ask_without_image
from .scenes import KINDS, draw_scene

VOCABULARY = 1024
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
           "<|video_pad|>")  # fmt: skip
PATCH, MERGE = CELL // 2, 2
TOKENS_LOW, TOKENS_HIGH = 60, 144

# Capitals and digits stay single, so that what is read from an image is spelled; lower-case words may merge.
WORDS = Regex(r"[A-Z][a-z]+| ?[a-z]+|[A-Z]|[0-9]|\s+|[^\sA-Za-z0-9]")

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "<|im_start|>{{ message['role'] }}\n"
    "{%- if message['content'] is string -%}{{ message['content'] }}"
    "{%- else -%}{%- for part in message['content'] -%}"
    "{%- if part['type'] == 'image' -%}<|vision_start|><|image_pad|><|vision_end|>"
    "{%- elif part['type'] == 'video' -%}<|vision_start|><|video_pad|><|vision_end|>"
    "{%- elif part['type'] == 'text' -%}{{ part['text'] }}{%- endif -%}"
    "{%- endfor -%}{%- endif -%}"
    "<|im_end|>\n"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistant\n{%- endif -%}"
).replace("\n", "{{ '\\n' }}")


def corpus(scenes: int = 600):
    """Texts of this world's questions and answers, for the tokenizer's merges."""
    rng = random.Random("tokenizer")
    for seed in range(scenes):
        for kind in KINDS:
            scene = draw_scene(2**40 + seed, kind, "small")
            yield from (f"{q.prompt}\n{q.answer}\n{q.answer}" for q in ask_scene(rng, scene, 12))
        yield from (f"{q.prompt}\n{q.answer}\n{q.answer}" for q in ask_without_image(rng, 40))
    yield from ["user\nassistant\n"] * 1000


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer that encodes any text; frequent words of this world are one token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(WORDS, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(SPECIAL[1:]),
        clean_up_tokenization_spaces=False,
        padding_side="left",
        model_max_length=2048,
    )


def build_processor(tokenizer: PreTrainedTokenizerFast) -> Qwen3VLProcessor:
    """Qwen3-VL's processor with 8-pixel patches and 60 to 144 visual tokens per image."""
    size = {"shortest_edge": TOKENS_LOW * CELL**2, "longest_edge": TOKENS_HIGH * CELL**2}
    shared = {"patch_size": PATCH, "merge_size": MERGE, "temporal_patch_size": 2, "size": size}
    shared |= {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
    return Qwen3VLProcessor(
        image_processor=Qwen2VLImageProcessor(**shared),
        tokenizer=tokenizer,
        video_processor=Qwen3VLVideoProcessor(**shared),
        chat_template=CHAT_TEMPLATE,
    )


def build_config(tokenizer: PreTrainedTokenizerFast) -> Qwen3VLMoeConfig:
    """Five layers of 16 experts, top 2, behind a thin vision tower: what is in the picture, the experts work out."""
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in SPECIAL}
    hidden = 192
    text = {
        "vocab_size": VOCABULARY,
        "hidden_size": hidden,
        "intermediate_size": 384,
        "moe_intermediate_size": 128,
        "num_hidden_layers": 5,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "num_experts": 16,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 2048,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [6, 5, 5], "mrope_interleaved": True},
        "initializer_range": 0.04,
        "router_aux_loss_coef": 0.0,
        "tie_word_embeddings": True,
        "pad_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|im_end|>"],
    }  # fmt: skip
    vision = {
        "depth": 2,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_heads": 4,
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "temporal_patch_size": 2,
        "out_hidden_size": hidden,
        "num_position_embeddings": 256,
        "deepstack_visual_indexes": [0],
        "initializer_range": 0.04,
    }
    return Qwen3VLMoeConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
    )


def build_model(config: Qwen3VLMoeConfig, seed: int) -> Qwen3VLMoeForConditionalGeneration:
    """An untrained model (float32, grouped experts) with reproducible weights."""
    torch.manual_seed(seed)
    config._experts_implementation = "grouped_mm"
    return Qwen3VLMoeForConditionalGeneration(config)


def published_state(model: Qwen3VLMoeForConditionalGeneration) -> dict[str, torch.Tensor]:
    """bfloat16 weights with experts as [N, in, out], as published Qwen3-VL-MoE checkpoints store them."""
    state = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":
            continue  # tied to the word embeddings
        tensor = tensor.detach().to(torch.bfloat16)
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            tensor = tensor.transpose(1, 2)
        state[name] = tensor.contiguous()
    return state


def save_model(model: Qwen3VLMoeForConditionalGeneration, processor: Qwen3VLProcessor, folder: Path) -> None:
    """Write weights (shards under 10 MB), configuration, generation settings and processor to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.safetensors*"):
        old.unlink()
    processor.save_pretrained(folder)
    config = model.config
    config.architectures = ["Qwen3VLMoeForConditionalGeneration"]
    config.dtype = "bfloat16"
    config.save_pretrained(folder)
    eos, pad = config.text_config.eos_token_id, config.text_config.pad_token_id
    GenerationConfig(do_sample=False, max_new_tokens=16, eos_token_id=eos, pad_token_id=pad).save_pretrained(folder)
    save_torch_state_dict(published_state(model), folder, max_shard_size="9MB", metadata={"format": "pt"})
