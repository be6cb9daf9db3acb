"""Local semantic rerouting: overflow pairs move to the next best expert of the rank they were sent to (MACS §3.4).

One token, 4 experts on 2 ranks, top-k 2. Its pair with expert 0 did not fit:

    rank       0     0     1     1
    expert     0     1     2     3
    score     .50   .15   .05   .30
    chosen    yes               yes
    proposes        here                    expert 1: the best expert of rank 0 that the token has not chosen

If expert 1 has room, the pair's weight becomes weight * .15 / .50; if not, rank 0 has no candidate left and the
pair is dropped. It never goes to rank 1, because nothing new may cross the network.

A (token, rank) with overflow is a queue. In each round the head of the queue proposes, so every queue uses up its
best open candidate in every round, whoever its head is: at most N/G rounds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from macs.core.admission import admit
from macs.core.loads import sum_by_expert


@dataclass(frozen=True)
class Queues:
    """Overflow pairs of M (token, rank) groups, the best original score first; ``_R`` is the rank's experts."""

    token_M: Tensor
    rank_M: Tensor
    open_MR: Tensor  # score of each expert of the rank; negative once chosen or proposed to
    head_M: Tensor  # position of the next pair in `pair_P`
    first_M: Tensor
    end_M: Tensor
    score_MK: Tensor  # original scores in queue order, -inf past the end

    def take(self, index: Tensor) -> Queues:
        """Return the queues at ``index``."""
        return Queues(**{name: value[index] for name, value in vars(self).items()})


def reroute(
    open_TN: Tensor,
    expert_TK: Tensor,
    score_TK: Tensor,
    over_TK: Tensor,
    room_N: Tensor,
    units_T: Tensor,
    priority_P: Tensor,
    *,
    ep_size: int,
    min_affinity: float,
    shrink: bool,
) -> Tensor:
    """Return target_TK: the expert that an overflow pair moves to, or N where a pair does not move (§3.4).

    ``room_N`` and ``units_T`` are in load units, ``priority_P`` is each pair's priority at its original expert.
    With ``shrink`` finished queues are left out and the rounds end early, which needs sizes that only the data
    tell: right on a CPU, but on an accelerator the host would have to wait for them in every round.
    """
    num_experts, pairs = open_TN.shape[1], over_TK.numel()
    pair_P, queues = _build_queues(open_TN, expert_TK, score_TK, over_TK, ep_size, shrink)
    target_P = torch.full((pairs + 1,), num_experts, device=open_TN.device)  # the last entry takes what nobody moved
    per_rank = num_experts // ep_size
    for _ in range(per_rank):
        if shrink and len(queues.token_M) == 0:
            break
        best_M, local_M = queues.open_MR.max(-1)
        best_M = best_M.double()
        skip_M = (min_affinity * queues.score_MK > best_M[:, None]).sum(-1)
        head_M = torch.maximum(queues.head_M, queues.first_M + skip_M)
        proposes_M = (head_M < queues.end_M) & (best_M >= 0)
        expert_M = torch.where(proposes_M, queues.rank_M * per_rank + local_M, num_experts)
        units_M = units_T[queues.token_M]
        pair_M = pair_P[head_M.clamp_max(len(pair_P) - 1)]
        accepted_M = admit(expert_M, priority_P[pair_M], units_M, room_N)
        moved_M = torch.where(accepted_M, pair_M, pairs)
        target_P[moved_M] = torch.where(accepted_M, expert_M, num_experts)
        room_N = room_N - sum_by_expert(torch.where(accepted_M, expert_M, num_experts), units_M, num_experts)
        open_MR = queues.open_MR.scatter(1, local_M[:, None], -1.0)
        queues = replace(queues, open_MR=open_MR, head_M=head_M + accepted_M)
        if shrink:
            queues = queues.take(torch.nonzero(proposes_M)[:, 0])
    return target_P[:pairs].view_as(expert_TK)


def _build_queues(open_TN, expert_TK, score_TK, over_TK, ep_size, shrink) -> tuple[Tensor, Queues]:
    (tokens, num_experts), top_k = open_TN.shape, expert_TK.shape[1]
    per_rank, groups = num_experts // ep_size, tokens * ep_size
    token_TK = torch.arange(tokens, device=open_TN.device)[:, None].expand_as(expert_TK)
    group_TK = torch.where(over_TK, token_TK * ep_size + expert_TK // per_rank, groups)
    group_P, score_P = group_TK.flatten(), score_TK.flatten()
    chosen_P = _where(over_TK.flatten(), shrink)
    order_P = torch.sort(score_P[chosen_P], descending=True, stable=True).indices
    order_P = order_P[torch.sort(group_P[chosen_P][order_P], stable=True).indices]
    pair_P = chosen_P[order_P]
    count_S = sum_by_expert(group_P, torch.ones_like(group_P), groups)
    group_M = _where(count_S > 0, shrink)
    end_M = count_S.cumsum(0)[group_M]
    first_M = end_M - count_S[group_M]
    place_MK = first_M[:, None] + torch.arange(top_k, device=open_TN.device)
    score_MK = score_P[pair_P[place_MK.clamp_max(max(len(pair_P) - 1, 0))]] if len(pair_P) else score_P[:0].view(0, top_k)
    return pair_P, Queues(
        token_M=group_M // ep_size,
        rank_M=group_M % ep_size,
        open_MR=open_TN.reshape(groups, per_rank)[group_M],
        head_M=first_M,
        first_M=first_M,
        end_M=end_M,
        score_MK=score_MK.masked_fill(place_MK >= end_M[:, None], -torch.inf),
    )


def _where(mask: Tensor, shrink: bool) -> Tensor:
    return torch.nonzero(mask)[:, 0] if shrink else torch.arange(len(mask), device=mask.device)
