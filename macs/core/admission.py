"""Who an expert takes in: pairs in order of priority while their running load fits (MACS §3.4, CAI-MoE §3)."""

from __future__ import annotations

import torch
from torch import Tensor

from macs.core.loads import sum_by_expert


def admit(expert_P: Tensor, priority_P: Tensor, units_P: Tensor, limit_N: Tensor) -> Tensor:
    """Return admitted_P: True for the pairs that their expert keeps.

    Each expert takes its pairs by falling priority, ties by position in the list, while the running sum of
    ``units_P`` stays within ``limit_N``. ``expert_P`` is N for an entry that is no pair, and is never admitted.

        one expert, limit 2.0   priority 0.9  0.7  0.4  0.3
                                load     1.0  0.6  0.5  0.1
                                running  1.0  1.6  2.1  2.2    -> keeps the first two: the third does not fit,
                                                                  and nobody overtakes it
    """
    order_P = by_expert(expert_P, priority_P)
    sorted_P = expert_P[order_P]
    running_P = units_P[order_P].cumsum(0)
    total_N = sum_by_expert(expert_P, units_P, len(limit_N))
    # The sum over all earlier experts is what the running sum starts from: exact, because units are integers.
    line_N = total_N.cumsum(0) - total_N + limit_N
    fits_P = running_P <= torch.cat([line_N, line_N.new_full((1,), -1)])[sorted_P]
    return torch.empty_like(fits_P).scatter_(0, order_P, fits_P)


def by_expert(expert_P: Tensor, priority_P: Tensor) -> Tensor:
    """Return the order of pairs by expert, then falling priority, then position (two stable sorts)."""
    first_P = torch.sort(priority_P, descending=True, stable=True).indices
    second_P = torch.sort(expert_P[first_P], stable=True).indices
    return first_P[second_P]


def unchosen_scores(scores_TN: Tensor, expert_TK: Tensor) -> Tensor:
    """Return a copy of the scores with -1, below any score, at the experts that the token has already chosen."""
    return scores_TN.scatter(1, expert_TK, -1.0)


def home_candidates(open_TN: Tensor, valid_T: Tensor, ep_size: int) -> tuple[Tensor, Tensor]:
    """Return (expert_TR, score_TR) of the extra candidates of CAI-MoE's expanded drop; expert N where there is none.

    The R = N/ep_size experts of a token's home rank; the i-th of n valid tokens lives on rank floor(i * ep_size / n).
    ``open_TN`` is negative at experts that the token has already chosen: those are no candidates.
    """
    num_tokens, num_experts = open_TN.shape
    per_rank = num_experts // ep_size
    position_T = (valid_T.long().cumsum(0) - 1).clamp_min(0)
    home_T = position_T * ep_size // valid_T.sum().clamp_min(1)
    expert_TR = home_T[:, None] * per_rank + torch.arange(per_rank, device=open_TN.device)
    score_TR = open_TN.gather(1, expert_TR)
    return expert_TR.masked_fill((score_TR < 0) | ~valid_T[:, None], num_experts), score_TR
