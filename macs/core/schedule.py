"""One layer's schedule: who is admitted, who moves, who is dropped (DESIGN names: T tokens, N experts, K slots).

Pure functions on tensors: no model, no process group; ranks are only the number ``ep_size``. Nothing here waits for
an accelerator, and the same input gives the same bits on every run: ties are broken by position, loads are integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from macs.config import Policy
from macs.core.admission import admit, unchosen_scores
from macs.core.capacity import capacities
from macs.core.chance import chance
from macs.core.checks import check_arguments, check_values
from macs.core.expand import home_candidates
from macs.core.loads import ONE, from_units, limit_units, sum_by, to_units
from macs.core.reroute import Overflow, reroute

KEPT, REROUTED, DROPPED, PADDING, EXPANDED, UNUSED = range(6)


@dataclass(frozen=True)
class Assignment:
    """What a policy decided for one layer; ``_C`` is K slots, or K + N/ep_size under ``overflow="expand"``."""

    expert_TC: Any  # int64, expert that executes the pair; N where nothing does
    weight_TC: Any  # routing weight, 0 where nothing is executed
    status_TC: Any  # int8, KEPT .. UNUSED
    capacity_N: Any  # float64, C_j in the unit of the policy's load
    visual_ratio: float | Any  # R_v, 0-d tensor on the scores' device
    token_weight_T: Any  # w: entropy weight of a visual token, 1 of any other
    tokens_before_N: Any  # pairs routed to each expert
    tokens_after_N: Any  # pairs each expert executes
    effective_before_N: Any  # the same in effective load (sum of w)
    effective_after_N: Any


@dataclass(frozen=True)
class Pairs:
    """Pairs of a layer as a table: K slots of the router, then the extra candidates; expert N where there is none."""

    expert_TC: Tensor
    score_TC: Tensor  # float64
    weight_TC: Tensor  # float64


def schedule(
    scores_TN: Tensor,
    expert_TK: Tensor,
    weight_TK: Tensor,
    token_weight_T: Tensor,
    visual_T: Tensor,
    valid_T: Tensor,
    *,
    policy: Policy,
    ep_size: int,
    modality_N: Tensor | None = None,
    router_normalizes: bool = True,
) -> Assignment:
    """Return what ``policy`` makes of one layer's routing (§3.2-§3.4); raises ValueError on what `checks` refuses.

    ``scores_TN`` are the router's softmax probabilities or unbiased sigmoid scores of all N experts, ``expert_TK``
    and ``weight_TK`` its top-k as it returned them, ``token_weight_T`` the w of `token_weights`, ``visual_T`` and
    ``valid_T`` the tokens of images and those that are not padding. ``modality_N`` is needed with
    capacity="modality"; ``router_normalizes`` tells whether the router scales its top-k to a fixed sum.
    One token, 4 experts on 2 ranks, K = 2, when expert 0 is full and expert 1 is not:

        expert           0     1     2     3    (4: none)
        scores_TN      .50   .15   .30   .05
        router         .62         .38          expert_TK [0, 2]
        drop                       1.0          expert_TC [4, 2]   status [DROPPED, KEPT]
        reroute              .33   .67          expert_TC [1, 2]   status [REROUTED, KEPT]   .62 * .15/.50 = .19,
                                                                   then .19 and .38 are scaled to sum to 1 again
    """
    check_arguments(scores_TN, expert_TK, weight_TK, token_weight_T, visual_T, valid_T, policy, ep_size, modality_N)
    if scores_TN.device.type == "cpu":
        check_values(scores_TN, expert_TK, weight_TK, token_weight_T, valid_T)
    num_experts, top_k = scores_TN.shape[1], expert_TK.shape[1]
    effective_T = to_units(token_weight_T).masked_fill(~valid_T, 0)
    load = from_units(effective_T.sum())
    visual_ratio = from_units(effective_T.masked_fill(~visual_T, 0).sum()) / load.clamp_min(1 / ONE)
    if modality_N is None:
        modality_N = torch.zeros(num_experts)
    amounts = {"tokens": valid_T.sum(), "load": load, "visual_ratio": visual_ratio, "top_k": top_k}
    capacity_N = capacities(policy, **amounts, modality_N=modality_N.to(scores_TN.device))
    routed = _routed_pairs(scores_TN, expert_TK, weight_TK, valid_T)
    pairs = _with_extras(routed, scores_TN, valid_T, ep_size) if policy.overflow == "expand" else routed
    executed_TC = _executed(pairs, scores_TN, token_weight_T, effective_T, capacity_N, policy, ep_size)
    weight_TC = _weights(pairs, executed_TC, scores_TN)
    if policy.renormalize == "always" or (policy.renormalize == "router" and router_normalizes):
        weight_TC = _renormalized(weight_TC, routed.weight_TC)
    one_T = torch.ones_like(effective_T)
    return Assignment(
        expert_TC=executed_TC,
        weight_TC=weight_TC.to(weight_TK.dtype),
        status_TC=_statuses(pairs.expert_TC, executed_TC, valid_T, num_experts, top_k),
        capacity_N=capacity_N,
        visual_ratio=visual_ratio,
        token_weight_T=token_weight_T,
        tokens_before_N=_sum_per_expert(routed.expert_TC, one_T, num_experts),
        tokens_after_N=_sum_per_expert(executed_TC, one_T, num_experts),
        effective_before_N=from_units(_sum_per_expert(routed.expert_TC, effective_T, num_experts)),
        effective_after_N=from_units(_sum_per_expert(executed_TC, effective_T, num_experts)),
    )


def _routed_pairs(scores_TN: Tensor, expert_TK: Tensor, weight_TK: Tensor, valid_T: Tensor) -> Pairs:
    """The router's pairs; padding has none. Half and single precision are widened here, exactly, and nowhere else."""
    padding_T1 = ~valid_T[:, None]
    score_TK = scores_TN.gather(1, expert_TK.masked_fill(padding_T1, 0).long())
    expert_TK = expert_TK.masked_fill(padding_T1, scores_TN.shape[1]).long()
    return Pairs(expert_TK, score_TK.double(), weight_TK.double().masked_fill(padding_T1, 0))


def _with_extras(pairs: Pairs, scores_TN: Tensor, valid_T: Tensor, ep_size: int) -> Pairs:
    """The pairs and, in R more columns, the extra candidates, weighted by score as the pair in slot 0 is."""
    expert_TR, score_TR = home_candidates(unchosen_scores(scores_TN, pairs.expert_TC), valid_T, ep_size)
    weight_TR = pairs.weight_TC[:, :1] * _ratio(score_TR.double(), pairs.score_TC[:, :1])
    return Pairs(
        torch.cat([pairs.expert_TC, expert_TR], 1),
        torch.cat([pairs.score_TC, score_TR.double()], 1),
        torch.cat([pairs.weight_TC, weight_TR], 1),
    )


def _executed(pairs, scores_TN, token_weight_T, effective_T, capacity_N, policy, ep_size) -> Tensor:
    """Return the expert that executes each pair, N for none: its own, or with rerouting another of the same rank."""
    if policy.overflow == "none":
        return pairs.expert_TC
    shape, num_experts, by_entropy = pairs.expert_TC.shape, len(capacity_N), policy.load == "entropy"
    priority_TC = priorities(pairs.score_TC, pairs.weight_TC, token_weight_T, policy)
    units_T = effective_T if by_entropy else torch.full_like(effective_T, ONE)
    expert_P, priority_P = pairs.expert_TC.flatten(), priority_TC.flatten()
    units_P = units_T[:, None].expand(shape).flatten()
    limit_N = limit_units(capacity_N, len(expert_P))
    admitted_P = admit(expert_P, priority_P, units_P, limit_N)
    executed_P = expert_P.masked_fill(~admitted_P, num_experts)
    if policy.overflow == "reroute":
        moved_P = reroute(
            Overflow(~admitted_P & (expert_P < num_experts), expert_P, pairs.score_TC.flatten(), priority_P, units_P),
            unchosen_scores(scores_TN, pairs.expert_TC),
            limit_N - sum_by(executed_P, units_P, num_experts),
            ep_size=ep_size,
            min_affinity=policy.min_affinity,
            shrink=scores_TN.device.type == "cpu",
        )
        executed_P = torch.minimum(executed_P, moved_P)  # N in one of the two at least
    return executed_P.view(shape)


def priorities(score_TC: Tensor, weight_TC: Tensor, token_weight_T: Tensor, policy: Policy) -> Tensor:
    """Return who goes first (§3.4), float64 and not negative, from the pairs' scores and routing weights in float64."""
    if policy.priority == "random":
        return chance(score_TC, policy.seed)
    if policy.priority == "weight":
        return weight_TC.abs()
    weighted = policy.load == "entropy" and policy.priority == "weighted_score"  # a load of 1 changes no priority
    return score_TC * token_weight_T.double()[:, None] if weighted else score_TC


def _weights(pairs: Pairs, executed_TC: Tensor, scores_TN: Tensor) -> Tensor:
    """Return weights in float64: old weight * new score / old score where a pair moved, 0 where nobody executes it."""
    num_experts = scores_TN.shape[1]
    new_TC = scores_TN.gather(1, executed_TC.clamp_max(num_experts - 1)).double()
    moved_TC = executed_TC != pairs.expert_TC
    weight_TC = torch.where(moved_TC, pairs.weight_TC * _ratio(new_TC, pairs.score_TC), pairs.weight_TC)
    return weight_TC.masked_fill(executed_TC == num_experts, 0)


def _ratio(new: Tensor, old: Tensor) -> Tensor:
    """Return new / old, and 0 for a pair whose own score is 0: it weighs nothing wherever it goes."""
    return torch.where(old > 0, new / old, 0.0)


def _renormalized(weight_TC: Tensor, router_TK: Tensor) -> Tensor:
    """Scale each token's weights to the sum that the router gave; exactly by 1 where nothing was lost or added."""
    top_k = router_TK.shape[1]
    left_T1 = weight_TC[:, :top_k].contiguous().sum(1, keepdim=True) + weight_TC[:, top_k:].sum(1, keepdim=True)
    scale_T1 = torch.where(left_T1 > 0, router_TK.sum(1, keepdim=True) / left_T1, 1.0)
    return weight_TC * scale_T1


def _statuses(expert_TC: Tensor, executed_TC: Tensor, valid_T: Tensor, num_experts: int, top_k: int) -> Tensor:
    kept_TC, gone_TC = executed_TC == expert_TC, executed_TC == num_experts
    status_TC = torch.where(kept_TC, KEPT, torch.where(gone_TC, DROPPED, REROUTED)).to(torch.int8)
    status_TC[:, top_k:] = torch.where(gone_TC[:, top_k:], UNUSED, EXPANDED)
    return status_TC.masked_fill(~valid_T[:, None], PADDING)


def _sum_per_expert(expert_TC: Tensor, units_T: Tensor, num_experts: int) -> Tensor:
    return sum_by(expert_TC.flatten(), units_T[:, None].expand(expert_TC.shape).flatten(), num_experts)
