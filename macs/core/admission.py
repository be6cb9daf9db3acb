"""Whom an expert takes: its pairs in order of priority while their running load fits (MACS §3.4, CAI-MoE §3)."""

from __future__ import annotations

import torch
from torch import Tensor

from macs.core.loads import sum_by


def admit(expert_P: Tensor, priority_P: Tensor, units_P: Tensor, limit_N: Tensor) -> Tensor:
    """Return admitted_P, true for each pair that its expert takes (§3.4).

    An expert takes pairs by falling priority, ties by position, while the running sum of ``units_P`` stays within
    ``limit_N``. Entries with expert N are no pairs and are never taken. One expert with room for a load of 2:

        priority   .9   .7   .4   .3
        load       1.   .6   .5   .1
        running    1.  1.6  2.1  2.2      the third does not fit, and the fourth does not overtake it
        taken     yes  yes   no   no
    """
    order_P = order_within(expert_P, priority_P)
    running_P = units_P.index_select(0, order_P).cumsum(0)
    total_N = sum_by(expert_P, units_P, len(limit_N))
    # One running sum serves all experts: each starts where those before it end, exactly, for units are integers.
    line_N = total_N.cumsum(0) - total_N + limit_N
    line_P = torch.cat([line_N, line_N.new_full((1,), -1)]).index_select(0, expert_P.index_select(0, order_P))
    return torch.empty_like(order_P, dtype=torch.bool).scatter_(0, order_P, running_P <= line_P)


def order_within(bucket_P: Tensor, value_P: Tensor) -> Tensor:
    """Return the order by bucket, then falling value, then position; values are float64 and not negative.

    Two stable sorts, the finer first. Read as integers, the bits of such floats keep their order, and integers sort
    five times as fast on a CPU; adding 0.0 turns -0.0, whose bits would not, into 0.0.
    """
    falling_P = -(value_P + 0.0).view(torch.int64)
    first_P = torch.sort(falling_P, stable=True).indices
    second_P = torch.sort(bucket_P.index_select(0, first_P).int(), stable=True).indices
    return first_P.index_select(0, second_P)


def unchosen_scores(scores_TN: Tensor, expert_TK: Tensor) -> Tensor:
    """Return a copy of the scores with -1, below every score, at the experts that the token has already chosen.

    Expert N, which padding has for want of any, closes the last one: padding proposes nothing and gets no candidate.
    """
    return scores_TN.scatter(1, expert_TK.clamp_max(scores_TN.shape[1] - 1), -1.0)
