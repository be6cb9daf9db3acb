"""MACS beside transformers' own expert-parallel implementations: dropped pairs cost a rank nothing, and each rank's time is told apart.

The policy has decided before these are called (``macs.model.seam`` hooks the experts), from values that all ranks of a
shared batch hold alike: the same bits give the same schedule on each, and nothing is sent to agree. A dropped pair
arrives as id N with weight 0. Inference only.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Callable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers.distributed import DistributedConfig
from transformers.distributed.expert_parallel import EPImplementation, EPImplementationInterface

from macs.model.timeline import CallRecord, Stretch, Timeline

EXCHANGES = {"all_reduce": "macs_all_reduce", "all_to_all": "macs_all_to_all"}


class _Macs(EPImplementation):
    """What both forms share: a rank runs its experts on the rows of its own pairs alone, and may clock its calls."""

    def __init__(self, experts: nn.Module, ep_mesh, tp_mesh) -> None:
        super().__init__(experts, ep_mesh, tp_mesh)
        self.group, self.size, self.rank = ep_mesh.get_group(), ep_mesh.size(), ep_mesh.get_local_rank()
        self.on_collective: Callable[[], None] = lambda: None
        self.record: CallRecord | None = None  # where the next call writes its times
        experts.macs_parallel = self

    def _experts(self, rows_PD: Tensor, expert_P: Tensor, weight_P: Tensor) -> Tensor:
        """Return this rank's experts' output [P, D] for rows with local expert ids."""
        with _stretch(self.record, "experts"):
            out_PD = run_pairs(self.experts_forward, rows_PD, expert_P, weight_P)
        if self.record is not None:
            self.record.pairs = len(expert_P)
        return out_PD

    @contextmanager
    def _collective(self) -> Iterator[None]:
        self.on_collective()
        with _stretch(self.record, "collective"):
            yield


class MacsAllReduce(_Macs):
    """
    The EP group shares one batch (``ep_size == tp_size``). Like `AllReduceEP`, every rank holds all tokens, runs its own
    experts and an all-reduce sums the partial outputs. Unlike it, a rank gathers only the rows of pairs that the policy
    left to its experts: a dropped pair costs no gather and no product, so the layer is as fast as its fullest rank.
    The number of those rows is read back to the host: one synchronisation a layer.

    Example: 4 experts on 2 ranks, top-2, three tokens. E0 is full, and is the less wanted expert of token 1: that pair is
    rerouted to E1, on the same rank. E3 is full too, and its pair with token 2 finds no room: it is dropped (id 4).

    GPU                       0                           1
                              |                           |
    batch              [=== t0 t1 t2 ===]          [=== t0 t1 t2 ===]     the same tokens on both ranks
    experts               E0    E1                    E2    E3
    router says        t0: E0 E2    t1: E3 E0    t2: E1 E3                the same on both ranks
    schedule says      t0: E0 E2    t1: E3 E1    t2: E1 4                 the same on both ranks
    rows gathered      t0:E0  t1:E1  t2:E1         t0:E2  t1:E3           3 and 2 pairs; vanilla: 3 and 3
    partial output     E0(t0) E1(t1) E1(t2)        E2(t0) E3(t1)  0       weighted
    after all-reduce   E0(t0)+E2(t0)   E1(t1)+E3(t1)   E1(t2)             on both ranks
    """

    needs_shared_batch = True

    @torch.no_grad()
    def __call__(self, hidden_TD: Tensor, expert_TK: Tensor, weight_TK: Tensor) -> Tensor:
        first = self.rank * self.num_local_experts
        with _stretch(self.record, "experts"):
            token_P, expert_P, weight_P = own_pairs(expert_TK, weight_TK, first, self.num_local_experts)
            out_TD = sum_pairs(
                run_pairs(self.experts_forward, hidden_TD[token_P], expert_P, weight_P), token_P, hidden_TD
            )
        if self.record is not None:
            self.record.pairs = len(token_P)
        with self._collective():
            dist.all_reduce(out_TD, group=self.group)
        return out_TD


class MacsAllToAll(_Macs):
    """
    Tokens travel. The ranks of a TP group keep disjoint slices of the batch they share, or, under data parallelism
    (``tp_size=1``), each its own batch; each sends its pairs to the experts' ranks, which send the results back.
    A dropped pair is never sent: the split sizes count kept and rerouted pairs alone.

    With a shared batch every rank knows the schedule of all tokens, and uses its slice of it. With its own batch a rank
    schedules its own T/G tokens, for which C_base = γ·(T/G)·K/N is its share of the experts' capacity: no expert
    receives more than its full capacity, and the ranks need not talk before they send.
    Two host synchronisations a layer: the number of pairs kept, and the split sizes that the exchange itself needs.

    Example: the three tokens of `MacsAllReduce`, one shared batch on 2 ranks; slices of 2 and 1 tokens.

    GPU                       0                           1
                              |                           |
    slice              [=== t0 t1 ===]             [=== t2 ===]
    schedule says      t0: E0 E2   t1: E3 E1       t2: E1 4
    sends to 0         t0:E0  t1:E1                t2:E1                  the pair (t2, E3) is not sent
    sends to 1         t0:E2  t1:E3                nothing
    computes           E0(t0) E1(t1) E1(t2)        E2(t0) E3(t1)
    gets back          E0(t0) E1(t1) E2(t0) E3(t1) E1(t2)
    weighted sum       t0  t1                      t2
    after all-gather   t0 t1 t2                    t0 t1 t2               shared batch only
    """

    @torch.no_grad()
    def __call__(self, hidden_TD: Tensor, expert_TK: Tensor, weight_TK: Tensor) -> Tensor:
        if self.tp_mesh.size() == 1:
            return self._exchange(hidden_TD, expert_TK, weight_TK)
        count, share = len(hidden_TD), -(-len(hidden_TD) // self.size)  # the last slices may be short or empty
        mine = slice(self.rank * share, (self.rank + 1) * share)
        part_SD = self._exchange(hidden_TD[mine], expert_TK[mine], weight_TK[mine])
        padded_SD = nn.functional.pad(part_SD, (0, 0, 0, share - len(part_SD)))
        out_TD = hidden_TD.new_empty(share * self.size, hidden_TD.shape[1])
        with self._collective():
            dist.all_gather_into_tensor(out_TD, padded_SD.contiguous(), group=self.group)
        return out_TD[:count]

    def _exchange(self, hidden_TD: Tensor, expert_TK: Tensor, weight_TK: Tensor) -> Tensor:
        """Return the weighted sum over its executed pairs for each of this rank's tokens [T, D]."""
        experts = self.num_local_experts * self.size
        token_P, expert_P, weight_P = own_pairs(expert_TK, weight_TK, 0, experts)
        order_P = expert_P.argsort(stable=True)  # by expert is by rank: ranks own ranges of experts
        token_P, weight_P = token_P[order_P], weight_P[order_P]
        sent_GE = expert_P.bincount(minlength=experts).view(self.size, -1)
        got_GE = torch.empty_like(sent_GE)
        with self._collective():
            dist.all_to_all_single(got_GE, sent_GE, group=self.group)
        sizes_2G = torch.stack([sent_GE.sum(1), got_GE.sum(1)]).tolist()
        rows_RD = self._swap(hidden_TD[token_P], *sizes_2G)
        local_R = torch.arange(self.num_local_experts, device=hidden_TD.device).repeat(self.size)
        local_R = local_R.repeat_interleave(got_GE.flatten(), output_size=len(rows_RD))
        done_RD = self._experts(rows_RD, local_R, weight_P.new_ones(len(rows_RD)))
        back_PD = self._swap(done_RD, *reversed(sizes_2G))
        return sum_pairs(back_PD * weight_P[:, None], token_P, hidden_TD)

    def _swap(self, rows_PD: Tensor, sizes_out: list[int], sizes_in: list[int]) -> Tensor:
        got_RD = rows_PD.new_empty(sum(sizes_in), rows_PD.shape[1])
        with self._collective():
            dist.all_to_all_single(got_RD, rows_PD.contiguous(), sizes_in, sizes_out, group=self.group)
        return got_RD


def own_pairs(expert_TK: Tensor, weight_TK: Tensor, first: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return token [P], local expert id [P] and weight [P] of the pairs with experts ``first`` .. ``first + count - 1``."""
    token_P, slot_P = ((expert_TK >= first) & (expert_TK < first + count)).nonzero(as_tuple=True)
    return token_P, expert_TK[token_P, slot_P] - first, weight_TK[token_P, slot_P]


def run_pairs(experts_forward: Callable, rows_PD: Tensor, expert_P: Tensor, weight_P: Tensor) -> Tensor:
    """Return the weighted output [P, D] of one expert for each row; a rank without pairs does nothing."""
    if not len(rows_PD):
        return rows_PD
    return experts_forward(rows_PD, expert_P[:, None], weight_P[:, None])


def sum_pairs(out_PD: Tensor, token_P: Tensor, like_TD: Tensor) -> Tensor:
    """Return the sum over each token's pairs [T, D], taken in float32 and returned in the type of ``like_TD``."""
    sum_TD = torch.zeros(like_TD.shape, dtype=torch.float32, device=like_TD.device)
    return sum_TD.index_add_(0, token_P, out_PD.float()).to(like_TD.dtype)
