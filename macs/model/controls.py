"""Controls that are no policy: what a model does when pairs are lost at random."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import Iterator

import torch
from torch import nn

from macs.config import checked_number
from macs.model.anatomy import dissect
from macs.model.experts import skipping_dropped


@contextmanager
def random_drop(model: nn.Module, share: float, seed: int) -> Iterator[None]:
    """Drop each pair with probability ``share`` in every MoE layer of every forward pass, prefill and decode.

    The weights of a token's surviving pairs are scaled to their original sum, as policies do for routers that
    normalise. Raises ValueError if ``share`` is outside [0, 1] or the model has no routed experts.
    """
    share = checked_number("share", share, 0.0, 1.0)
    anatomy = dissect(model)
    dice = torch.Generator().manual_seed(seed)

    def drop(_: nn.Module, args: tuple) -> tuple:
        hidden_TD, expert_TK, weight_TK = args
        lost_TK = (torch.rand(expert_TK.shape, generator=dice) < share).to(expert_TK.device)
        left_TK = weight_TK.masked_fill(lost_TK, 0)
        sum_T1 = left_TK.sum(-1, keepdim=True)
        scale_T1 = torch.where(sum_T1 > 0, weight_TK.sum(-1, keepdim=True) / sum_T1, 0)
        return hidden_TD, expert_TK.masked_fill(lost_TK, anatomy.num_experts), left_TK * scale_T1

    with ExitStack() as undo:
        for layer in anatomy.layers:
            undo.enter_context(skipping_dropped(layer.experts))
            undo.callback(layer.experts.register_forward_pre_hook(drop).remove)
        yield
