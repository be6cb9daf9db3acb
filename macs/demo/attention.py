"""Two faster forms of the model's attention for packed training; both compute what transformers' own compute.

Inference never uses them: the exported model is plain transformers.
"""

from functools import partial

import torch
from torch.nn import functional as F
from transformers import AttentionInterface
from transformers.models.qwen3_vl_moe.modeling_qwen3_vl_moe import apply_rotary_pos_emb_vision


def bias_of(mask: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """0 where the mask is True, a very negative number elsewhere, in the dtype of `like`."""
    return torch.zeros(mask.shape, dtype=like.dtype, device=like.device).masked_fill_(~mask, -1e9)


def packed_branches(module, query, key, value, attention_mask, scaling=1.0, shared_valid=None, **kwargs):
    """Attention of the packed layout: shared start causal over itself, each branch over the start and itself.

    query [B, H, L, D], key and value [B, K, L, D]; attention_mask bool [B, slots, SLOT, SLOT] within the slots;
    shared_valid bool [B, P]. Returns [B, L, H, D].
    """
    batch, heads, _, width = query.shape
    groups, start, (slots, size) = key.shape[1], shared_valid.shape[1], attention_mask.shape[1:3]
    fold = heads // groups
    query = (query * scaling).reshape(batch, groups, fold, -1, width)
    key_start, value_start = key[:, :, :start], value[:, :, :start]
    outside = bias_of(shared_valid, query)[:, None, None, :]

    causal = torch.ones(start, start, dtype=torch.bool, device=query.device).tril()
    within = bias_of(causal, query).repeat(fold, 1) + outside
    scores = query[..., :start, :].reshape(batch, groups, fold * start, width) @ key_start.transpose(-1, -2) + within
    mixed_start = (scores.softmax(-1).to(value.dtype) @ value_start).reshape(batch, groups, fold, start, width)
    mixed_start = mixed_start.permute(0, 3, 1, 2, 4).reshape(batch, start, heads, width)

    asked = query[..., start:, :].reshape(batch, groups, fold, slots, size, width).transpose(2, 3)
    asked = asked.reshape(batch, groups, slots * fold * size, width)
    key_own, value_own = (t[:, :, start:].reshape(batch, groups, slots, size, width) for t in (key, value))
    to_start = (asked @ key_start.transpose(-1, -2) + outside).view(batch, groups, slots, fold * size, start)
    to_own = asked.view(batch, groups, slots, fold * size, width) @ key_own.transpose(-1, -2)
    to_own = to_own + bias_of(attention_mask, query).repeat(1, 1, fold, 1)[:, None]
    share = torch.cat([to_start, to_own], -1).softmax(-1).to(value.dtype)
    mixed = share[..., start:] @ value_own
    mixed = mixed + (share[..., :start].reshape(batch, groups, -1, start) @ value_start).view_as(mixed)
    mixed = mixed.view(batch, groups, slots, fold, size, width).permute(0, 2, 4, 1, 3, 5)
    return torch.cat([mixed_start, mixed.reshape(batch, slots * size, heads, width)], 1), None


def batched_vision(module, hidden_states, cu_seqlens, position_embeddings=None, **kwargs) -> torch.Tensor:
    """The vision tower's attention for images of one area at once; transformers loops over images."""
    images = len(cu_seqlens) - 1
    qkv = module.qkv(hidden_states).reshape(len(hidden_states), 3, module.num_heads, -1)
    q, k = apply_rotary_pos_emb_vision(qkv[:, 0], qkv[:, 1], *position_embeddings)
    q, k, v = (t.reshape(images, -1, *t.shape[1:]).transpose(1, 2) for t in (q, k, qkv[:, 2]))
    if hidden_states.device.type == "cuda":
        mixed = F.scaled_dot_product_attention(q, k, v)
    else:  # on a CPU plain products are faster than the fused kernel at this size
        mixed = ((q * module.scaling) @ k.transpose(-1, -2)).softmax(-1).to(v.dtype) @ v
    return module.proj(mixed.transpose(1, 2).reshape(len(hidden_states), -1))


def use_packed_attention(model) -> None:
    """Switch a Qwen3-VL-MoE model to the packed layout for training."""
    AttentionInterface.register("packed_branches", packed_branches)
    model.model.language_model.config._attn_implementation = "packed_branches"
    for block in model.model.visual.blocks:
        block.attn.forward = partial(batched_vision, block.attn)
