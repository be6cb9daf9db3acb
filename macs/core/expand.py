"""The extra candidates of expanded drop: experts of the token's own rank that its router did not choose (CAI-MoE §3)."""

from __future__ import annotations

import torch
from torch import Tensor


def home_candidates(open_TN: Tensor, valid_T: Tensor, ep_size: int) -> tuple[Tensor, Tensor]:
    """Return (expert_TR, score_TR) for the R = N/ep_size experts of each token's home rank; expert N for no candidate.

    Tokens are dealt to ranks in order: the i-th of n that are not padding lives on rank floor(i * ep_size / n).
    ``open_TN`` is negative at experts that the token has already chosen, which are no candidates.
    """
    num_experts = open_TN.shape[1]
    per_rank = num_experts // ep_size
    place_T = (valid_T.long().cumsum(0) - 1).clamp_min(0)
    home_T = place_T * ep_size // valid_T.sum().clamp_min(1)
    expert_TR = home_T[:, None] * per_rank + torch.arange(per_rank, device=open_TN.device)
    score_TR = open_TN.gather(1, expert_TR)
    return expert_TR.masked_fill((score_TR < 0) | ~valid_T[:, None], num_experts), score_TR.clamp_min(0)
