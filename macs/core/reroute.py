"""Local semantic rerouting: overflow pairs move to the next best expert of the rank they were sent to (MACS §3.4).

One token, 4 experts on 2 ranks, K = 2. Its pair with expert 0 did not fit:

    rank         0         1
    expert       0    1    2    3
    score      .50  .15  .30  .05
    chosen     yes       yes
    proposes        yes               expert 1: the best expert of rank 0 that the token has not chosen

If expert 1 has room, the pair moves there; if not, rank 0 has no candidate left and the pair is dropped. It never
goes to rank 1: nothing new may cross the network.

The overflow pairs of one token on one rank form a queue, the best original score first, and share the candidates of
that rank. In each round every queue puts its head to its best open candidate and closes that candidate to all of the
queue, whatever the answer. So a queue that cannot propose never will again, and N/G rounds are enough.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from macs.core.admission import admit, order_within
from macs.core.loads import sum_by


@dataclass(frozen=True)
class Overflow:
    """The pairs that did not fit, flat (``_P`` is T*K), and what the rounds need to know of every pair."""

    over_P: Tensor
    expert_P: Tensor  # original expert
    score_P: Tensor  # its score, float64
    priority_P: Tensor  # the pair's priority there, which it keeps when it proposes elsewhere
    units_P: Tensor  # load


@dataclass(frozen=True)
class Queues:
    """M queues; heads and ends are places in ``pair_P``, where the pairs of a queue stand in a row."""

    rank_M: Tensor
    open_MR: Tensor  # score of each of the rank's R experts, negative once chosen or proposed to
    head_M: Tensor  # next pair to propose
    end_M: Tensor

    def take(self, index: Tensor) -> Queues:
        """Return the queues at ``index``."""
        return Queues(**{name: value.index_select(0, index) for name, value in vars(self).items()})


def reroute(overflow: Overflow, open_TN: Tensor, room_N: Tensor, *, ep_size: int, min_affinity: float, shrink: bool) -> Tensor:
    """Return target_P, the expert that an overflow pair moves to, or N for a pair that does not move (§3.4).

    ``open_TN`` holds the scores, negative at experts that the token has chosen; ``room_N`` the free units.
    ``shrink`` leaves out finished queues and ends early. The sizes then depend on the data, which costs nothing on a
    CPU; on an accelerator the host would wait for the device in every round, so there all N/G rounds run in full.
    """
    pairs, num_experts = len(overflow.over_P), open_TN.shape[1]
    per_rank = num_experts // ep_size
    pair_P, queues = _queues(overflow, open_TN, ep_size, shrink)
    target_P = torch.full((pairs + 1,), num_experts, device=open_TN.device)  # the last entry stands for no pair
    for _ in range(per_rank):
        if shrink and len(queues.head_M) == 0:
            break
        best_M, local_M = queues.open_MR.max(-1)  # the first of equals: the lowest id
        head_M = queues.head_M
        if min_affinity > 0:
            head_M = head_M + _unwilling(queues, best_M, overflow.score_P.index_select(0, pair_P), min_affinity)
        proposes_M = (head_M < queues.end_M) & (best_M >= 0)
        expert_M = torch.where(proposes_M, queues.rank_M * per_rank + local_M, num_experts)
        pair_M = pair_P.index_select(0, head_M.clamp_max(len(pair_P) - 1))
        units_M = overflow.units_P.index_select(0, pair_M)
        taken_M = admit(expert_M, overflow.priority_P.index_select(0, pair_M), units_M, room_N)
        expert_M = expert_M.masked_fill(~taken_M, num_experts)
        target_P.scatter_(0, pair_M.masked_fill(~taken_M, pairs), expert_M)
        room_N = room_N - sum_by(expert_M, units_M, num_experts)
        open_MR = queues.open_MR.scatter(1, local_M[:, None], -1.0)
        queues = replace(queues, open_MR=open_MR, head_M=head_M + taken_M)
        if shrink:
            queues = queues.take(torch.nonzero(proposes_M)[:, 0])
    return target_P[:pairs]


def _queues(overflow: Overflow, open_TN: Tensor, ep_size: int, shrink: bool) -> tuple[Tensor, Queues]:
    """Return (pair_P, queues): the pairs in queue order, and the (token, rank) groups that have any, or all groups."""
    tokens, num_experts = open_TN.shape
    per_rank, groups = num_experts // ep_size, tokens * ep_size
    token_P = torch.arange(tokens, device=open_TN.device).repeat_interleave(len(overflow.over_P) // max(tokens, 1))
    group_P = torch.where(overflow.over_P, token_P * ep_size + overflow.expert_P // per_rank, groups)
    pair_P = _where(overflow.over_P, shrink)
    order_P = order_within(group_P.index_select(0, pair_P), overflow.score_P.index_select(0, pair_P))
    count_S = sum_by(group_P, torch.ones_like(group_P), groups)
    group_M = _where(count_S > 0, shrink)
    end_M = count_S.cumsum(0).index_select(0, group_M)
    return pair_P.index_select(0, order_P), Queues(
        rank_M=group_M % ep_size,
        open_MR=open_TN.view(groups, per_rank).index_select(0, group_M),
        head_M=end_M - count_S.index_select(0, group_M),
        end_M=end_M,
    )


def _where(mask: Tensor, shrink: bool) -> Tensor:
    """Return the indices of the true entries, or of all entries where counting would make the host wait."""
    return torch.nonzero(mask)[:, 0] if shrink else torch.arange(len(mask), device=mask.device)


def _unwilling(queues: Queues, best_M: Tensor, score_P: Tensor, min_affinity: float) -> Tensor:
    """Return how many pairs at the head of each queue find the best candidate too far below their own expert.

    Scores fall along a queue, so they are its first ones, and candidates only get worse, so they are out for good.
    ``score_P`` is in queue order; a queue has at most R pairs, for the experts that a token chose differ.
    """
    place_MR = queues.head_M[:, None] + torch.arange(queues.open_MR.shape[1], device=best_M.device)
    score_MR = score_P.index_select(0, place_MR.clamp_max(len(score_P) - 1).flatten()).view_as(place_MR)
    unwilling_MR = (place_MR < queues.end_M[:, None]) & (min_affinity * score_MR > best_M.double()[:, None])
    return unwilling_MR.sum(-1)
