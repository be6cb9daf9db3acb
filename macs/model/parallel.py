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
    """What both forms share: a rank computes on the rows of its own pairs alone, and may clock one call."""

    def __init__(self, experts: nn.Module, ep_mesh, tp_mesh) -> None:
        super().__init__(experts, ep_mesh, tp_mesh)
        self.group, self.size, self.rank = ep_mesh.get_group(), ep_mesh.size(), ep_mesh.get_local_rank()
        self.on_collective: Callable[[], None] = lambda: None
        self.record: CallRecord | None = None  # where the next call, and no later one, writes its times
        experts.macs_parallel = self

    def __call__(self, hidden_TD: Tensor, expert_TK: Tensor, weight_TK: Tensor) -> Tensor:
        if torch.is_grad_enabled() and hidden_TD.requires_grad:
            raise RuntimeError(f"{type(self).__name__} has no backward; run the model under torch.no_grad().")
        with torch.no_grad():
            out_TD = self._run(hidden_TD, expert_TK, weight_TK)
        self.record = None
        return out_TD

    @contextmanager
    def _computing(self) -> Iterator[None]:
        if self.record is None:
            yield
            return
        begin = self.record.line.mark()
        yield
        self.record.experts = Stretch(begin, self.record.line.mark())

    @contextmanager
    def _collective(self) -> Iterator[None]:
        self.on_collective()
        if self.record is None:
            yield
            return
        begin = self.record.line.mark()
        yield
        self.record.collectives.append(Stretch(begin, self.record.line.mark()))

    def _count(self, pairs: int) -> None:
        if self.record is not None:
            self.record.pairs = pairs


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

    def _run(self, hidden_TD: Tensor, expert_TK: Tensor, weight_TK: Tensor) -> Tensor:
        first = self.rank * self.num_local_experts
        with self._computing():
            out_TD, pairs = partial_output(self.experts_forward, hidden_TD, expert_TK, weight_TK, first, self.num_local_experts)
        self._count(pairs)
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

    def _run(self, hidden_TD: Tensor, expert_TK: Tensor, weight_TK: Tensor) -> Tensor:
        if self.tp_mesh.size() == 1:
            return self._exchange(hidden_TD, expert_TK, weight_TK)
        count, share = len(hidden_TD), -(-len(hidden_TD) // self.size)  # the last slices may be short or empty
        mine = slice(self.rank * share, (self.rank + 1) * share)
        part_SD = self._exchange(hidden_TD[mine], expert_TK[mine], weight_TK[mine])
        padded_SD = nn.functional.pad(part_SD, (0, 0, 0, share - len(part_SD)))
        out_TD = hidden_TD.new_empty(share * self.size, hidden_TD.shape[1])
        with self._collective():
            dist.all_gather(list(out_TD.chunk(self.size)), padded_SD.contiguous(), group=self.group)
        return out_TD[:count]

    def _exchange(self, hidden_TD: Tensor, expert_TK: Tensor, weight_TK: Tensor) -> Tensor:
        """Return the weighted sum over its executed pairs for each of this rank's tokens [T, D]."""
        experts = self.num_local_experts * self.size
        token_P, expert_P, weight_P = own_pairs(expert_TK, weight_TK, 0, experts)
        order_P = expert_P.argsort(stable=True)  # by expert is by rank: ranks own ranges of experts
        token_P, weight_P = token_P[order_P], weight_P[order_P]
        sent_GE = torch.zeros(experts, dtype=torch.long, device=expert_P.device)
        sent_GE = sent_GE.scatter_add_(0, expert_P, torch.ones_like(expert_P)).view(self.size, -1)
        got_GE = torch.empty_like(sent_GE)
        with self._collective():
            dist.all_to_all_single(got_GE, sent_GE, group=self.group)
        sizes_2G = torch.stack([sent_GE.sum(1), got_GE.sum(1)]).tolist()
        rows_RD = self._swap(hidden_TD[token_P], sizes_2G[1], sizes_2G[0])
        local_R = torch.arange(self.num_local_experts, device=hidden_TD.device).repeat(self.size)
        local_R = local_R.repeat_interleave(got_GE.flatten(), output_size=len(rows_RD))
        with self._computing():
            done_RD = run_pairs(self.experts_forward, rows_RD, local_R, weight_P.new_ones(len(rows_RD)))
        self._count(len(rows_RD))
        back_PD = self._swap(done_RD, sizes_2G[0], sizes_2G[1])
        return sum_pairs(back_PD * weight_P[:, None], token_P, hidden_TD)

    def _swap(self, rows_PD: Tensor, in_G: list[int], out_G: list[int]) -> Tensor:
        got_RD = rows_PD.new_empty(sum(in_G), rows_PD.shape[1])
        with self._collective():
            dist.all_to_all_single(got_RD, rows_PD.contiguous(), in_G, out_G, group=self.group)
        return got_RD


def partial_output(
    experts_forward: Callable, hidden_TD: Tensor, expert_TK: Tensor, weight_TK: Tensor, first: int, count: int
) -> tuple[Tensor, int]:
    """Return what experts ``first`` .. ``first + count - 1`` add to each token [T, D], and how many pairs they executed."""
    token_P, expert_P, weight_P = own_pairs(expert_TK, weight_TK, first, count)
    out_PD = run_pairs(experts_forward, hidden_TD[token_P], expert_P, weight_P)
    return sum_pairs(out_PD, token_P, hidden_TD), len(token_P)


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


@contextmanager
def clocked(model: nn.Module, on_collective: Callable[[], None] = lambda: None) -> Iterator[list[CallRecord]]:
    """Clock the next call of every MoE layer inside ``with``; yields one record a layer, to be read when it is over.

    ``on_collective`` is called before a rank enters any collective. Raises ValueError if ``model`` was not loaded with
    one of ``EXCHANGES``.
    """
    parts = [module.macs_parallel for module in model.modules() if hasattr(module, "macs_parallel")]
    if not parts:
        raise ValueError("This model was not loaded with an expert-parallel implementation of MACS.")
    line = Timeline(next(model.parameters()).device)
    records = [CallRecord(line) for _ in parts]
    try:
        for part, record in zip(parts, records):
            part.record, part.on_collective = record, on_collective
        yield records
    finally:
        for part in parts:
            part.record, part.on_collective = None, lambda: None


def distributed_config(model: nn.Module, size: int, exchange: str = "all_reduce") -> DistributedConfig:
    """Return how to load ``model``'s checkpoint over ``size`` ranks that share one batch: experts split, all else whole.

    ``model`` may be on the meta device. Every tensor-parallel rule outside the experts becomes "replicate", so that
    attention heads need not divide by ``size``. Raises ValueError on an unknown exchange or a model without a plan.
    """
    if exchange not in EXCHANGES:
        raise ValueError(f"exchange is {exchange!r}; use one of {', '.join(EXCHANGES)}.")
    if not model.ep_plan:
        raise ValueError(f"{type(model).__name__} has no expert-parallel plan in transformers; use one process (--ranks 1).")

    def in_experts(rule: str) -> bool:
        return any(rule == name or rule.startswith(f"{name}.") for name in model.ep_plan)

    plan = {rule: "replicate" for rule in model.tp_plan if not in_experts(rule)}
    return DistributedConfig(tp_size=size, tp_plan=plan, ep_size=size, ep_implementation=EXCHANGES[exchange])


EPImplementationInterface.register(EXCHANGES["all_reduce"], MacsAllReduce)
EPImplementationInterface.register(EXCHANGES["all_to_all"], MacsAllToAll)
