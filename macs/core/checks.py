"""What `schedule` accepts: shapes and sizes always, values where looking at them is free."""

from __future__ import annotations

import torch
from torch import Tensor

from macs.config import Policy, check_ep_size

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def check_arguments(scores_TN, expert_TK, weight_TK, token_weight_T, visual_T, valid_T, policy, ep_size, modality_N) -> None:
    """Raise ValueError with one sentence on a wrong shape, dtype or rank count; does not look at the data."""
    if not isinstance(policy, Policy):
        raise ValueError(f"policy is {policy!r}; pass a macs.config.Policy.")
    if scores_TN.ndim != 2 or scores_TN.shape[1] == 0 or not scores_TN.is_floating_point():
        raise ValueError(f"scores_TN is {kind_of(scores_TN)}; pass floating scores [tokens, experts].")
    tokens, num_experts = scores_TN.shape
    check_ep_size(ep_size, num_experts)
    fits = expert_TK.ndim == 2 and len(expert_TK) == tokens and 1 <= expert_TK.shape[1] <= num_experts
    if not fits or expert_TK.dtype not in INTEGERS:
        raise ValueError(f"expert_TK is {kind_of(expert_TK)}; pass integer expert ids [{tokens}, 1 to {num_experts} slots].")
    if weight_TK.shape != expert_TK.shape or not weight_TK.is_floating_point():
        raise ValueError(f"weight_TK is {kind_of(weight_TK)}; pass floating weights of shape {tuple(expert_TK.shape)}.")
    if token_weight_T.shape != (tokens,) or not token_weight_T.is_floating_point():
        raise ValueError(f"token_weight_T is {kind_of(token_weight_T)}; pass {tokens} floating load weights.")
    for name, mask_T in (("visual_T", visual_T), ("valid_T", valid_T)):
        if mask_T.shape != (tokens,) or mask_T.dtype != torch.bool:
            raise ValueError(f"{name} is {kind_of(mask_T)}; pass {tokens} booleans.")
    if modality_N is None and policy.capacity == "modality":
        raise ValueError('capacity is "modality" but there is no modality_N; calibrate the model or use capacity="static".')
    if modality_N is not None and modality_N.shape != (num_experts,):
        raise ValueError(f"modality_N is {kind_of(modality_N)}; pass one of -1, 0, 1 for each of {num_experts} experts.")


def check_values(scores_TN, expert_TK, weight_TK, token_weight_T, valid_T, tokens: int | None = None) -> None:
    """Raise ValueError naming the first token that is not padding and whose numbers cannot be scheduled.

    `schedule` calls it for tensors on a CPU. On an accelerator the host would have to wait for the answer in every
    layer, so there the caller checks what it recorded. Ids stay in range until then, whatever the scores are.
    Rows of several layers have ``tokens`` each.
    """
    tokens = tokens or len(valid_T)
    _require((scores_TN.amin(-1) >= 0) & (scores_TN.amax(-1) < torch.inf), valid_T, tokens, "router scores", "finite and not negative")
    last = scores_TN.shape[1] - 1
    _require(((expert_TK >= 0) & (expert_TK <= last)).all(-1), valid_T, tokens, "expert ids", f"from 0 to {last}")
    _require(torch.isfinite(weight_TK).all(-1), valid_T, tokens, "routing weights", "finite")
    _require((token_weight_T >= 0) & (token_weight_T <= 1), valid_T, tokens, "load weight", "from 0 to 1")


def _require(good_T: Tensor, valid_T: Tensor, tokens: int, what: str, rule: str) -> None:
    bad_T = valid_T & ~good_T
    if bad_T.any():
        raise ValueError(f"The {what} of token {int(torch.nonzero(bad_T)[0, 0]) % tokens} cannot be scheduled; they must be {rule}.")


def kind_of(tensor: Tensor) -> str:
    """Return dtype and shape in words, for messages."""
    return f"{tensor.dtype} of shape {tuple(tensor.shape)}"
