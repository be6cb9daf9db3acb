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
from typing import TypeVar

import torch
from torch import Tensor

from macs.core.admission import admit, order_within
from macs.core.loads import ONE, sum_by


@dataclass(frozen=True)
class Overflow:
    """Pairs as columns, one row each."""

    over_P: Tensor  # true where the pair did not fit
    expert_P: Tensor  # original expert
    score_P: Tensor  # its score, float64
    priority_P: Tensor  # the pair's priority there, which it keeps wherever it proposes
    units_P: Tensor  # load


@dataclass(frozen=True)
class Queues:
    """M queues; heads and ends are rows of the pairs in queue order. A round works on it in place."""

    rank_M: Tensor
    open_MR: Tensor  # score of each of the rank's R experts, negative once chosen or proposed to
    head_M: Tensor  # next pair to propose
    end_M: Tensor  # one past the last


def reroute(pairs: Overflow, open_TN: Tensor, room_N: Tensor, *, ep_size: int, min_affinity: float, shrink: bool) -> Tensor:
    """Return target_P, the expert that an overflow pair moves to, or N for a pair that does not move (§3.4).

    ``open_TN`` holds the scores, negative at experts that the token has chosen; ``room_N`` the free units. Of several
    layers, whose experts are numbered through, ``open_TN`` has one after the other in its rows, and ``room_N`` too.
    ``shrink`` leaves out what cannot succeed and ends early. The sizes then depend on the data, which costs nothing
    on a CPU; an accelerator would make the host wait in every round, so there all N/G rounds run in full.
    """
    num_experts, per_rank = len(room_N), open_TN.shape[1] // ep_size
    ranks = num_experts // per_rank  # of all layers
    target_P = torch.full_like(pairs.expert_P, num_experts)
    if len(target_P) == 0:
        return target_P
    order_P, queues = _queues(pairs, open_TN, ep_size, ranks, shrink)
    queued = _take(pairs, order_P)
    moved_P = torch.full_like(order_P, num_experts)  # target_P in queue order
    lightest = torch.where(pairs.over_P, pairs.units_P, ONE).amin()
    for _ in range(per_rank):
        full_N = room_N < lightest
        if shrink:
            hopeless_M = full_N.view(ranks, per_rank).all(1).index_select(0, queues.rank_M)
            queues = _take(queues, _where((queues.head_M < queues.end_M) & ~hopeless_M, shrink))
            if len(queues.head_M) == 0:
                break
        queues, expert_M = _propose(queues, queued.score_P, num_experts, min_affinity)
        # A full expert refuses without being asked: only the other proposals, Q of them, have to be put in order.
        asking_Q = _where(~torch.cat([full_N, full_N.new_ones(1)]).index_select(0, expert_M), shrink)
        expert_Q, head_Q = expert_M.index_select(0, asking_Q), queues.head_M.index_select(0, asking_Q)
        row_Q = head_Q.clamp_max(len(order_P) - 1)
        units_Q = queued.units_P.index_select(0, row_Q)
        taken_Q = admit(expert_Q, queued.priority_P.index_select(0, row_Q), units_Q, room_N)
        expert_Q = expert_Q.masked_fill(~taken_Q, num_experts)
        moved_P.scatter_reduce_(0, row_Q, expert_Q, "amin")
        room_N = room_N - sum_by(expert_Q, units_Q, num_experts)
        queues.head_M.index_add_(0, asking_Q, taken_Q.long())
    return target_P.scatter_(0, order_P, moved_P)


def _queues(pairs: Overflow, open_TN: Tensor, ep_size: int, ranks: int, shrink: bool) -> tuple[Tensor, Queues]:
    """Return (order_P, queues): the order of the pairs by queue, and the (token, rank) groups with a queue, or all."""
    tokens, num_experts = open_TN.shape
    per_rank, groups = num_experts // ep_size, tokens * ep_size
    token_P = torch.arange(tokens, device=open_TN.device).repeat_interleave(len(pairs.over_P) // tokens)
    group_P = torch.where(pairs.over_P, token_P * ep_size + pairs.expert_P // per_rank % ep_size, groups)
    listed_P = _where(pairs.over_P, shrink)
    order_P = order_within(group_P.index_select(0, listed_P), pairs.score_P.index_select(0, listed_P))
    count_S = sum_by(group_P, torch.ones_like(group_P), groups)
    group_M = _where(count_S > 0, shrink)
    end_M = count_S.cumsum(0).index_select(0, group_M)
    return listed_P.index_select(0, order_P), Queues(
        rank_M=group_M // max(groups * ep_size // ranks, 1) * ep_size + group_M % ep_size,
        open_MR=open_TN.view(groups, per_rank).index_select(0, group_M),
        head_M=end_M - count_S.index_select(0, group_M),
        end_M=end_M,
    )


def _propose(queues: Queues, score_P: Tensor, num_experts: int, min_affinity: float) -> tuple[Queues, Tensor]:
    """Return the queues after each has named its best open candidate, and that expert_M, N where none is left."""
    best_M, local_M = queues.open_MR.max(-1)  # the first of equals: the lowest id
    head_M = queues.head_M
    if min_affinity > 0:
        head_M = head_M + _unwilling(queues, best_M, score_P, min_affinity)
    head_M = torch.where(best_M >= 0, head_M, queues.end_M)
    expert_M = queues.rank_M * queues.open_MR.shape[1] + local_M
    open_MR = queues.open_MR.scatter_(1, local_M[:, None], -1.0)
    return replace(queues, open_MR=open_MR, head_M=head_M), torch.where(head_M < queues.end_M, expert_M, num_experts)


def _unwilling(queues: Queues, best_M: Tensor, score_P: Tensor, min_affinity: float) -> Tensor:
    """Return how many pairs at the head of each queue find the best candidate too far below their own expert.

    Scores fall along a queue, so they are its first ones, and candidates only get worse, so they are out for good.
    ``score_P`` is in queue order; a queue has at most R pairs, for the experts that a token chose differ.
    """
    row_MR = queues.head_M[:, None] + torch.arange(queues.open_MR.shape[1], device=best_M.device)
    score_MR = score_P.index_select(0, row_MR.clamp_max(len(score_P) - 1).flatten()).view_as(row_MR)
    return ((row_MR < queues.end_M[:, None]) & (min_affinity * score_MR > best_M.double()[:, None])).sum(-1)


def _where(mask: Tensor, shrink: bool) -> Tensor:
    """Return the indices of the true entries, or of all entries where counting would make the host wait."""
    return torch.nonzero(mask)[:, 0] if shrink else torch.arange(len(mask), device=mask.device)


Table = TypeVar("Table", Overflow, Queues)


def _take(table: Table, index: Tensor) -> Table:
    """Return the rows of ``table`` at ``index``."""
    return replace(table, **{name: column.index_select(0, index) for name, column in vars(table).items()})
