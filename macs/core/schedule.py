"""A layer's schedule, or many at once: who is admitted, who moves, who is dropped (DESIGN names: T tokens, N experts, K slots).

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
    modality_N = torch.zeros(scores_TN.shape[1]) if modality_N is None else modality_N
    one = [x[None] for x in (scores_TN, expert_TK, weight_TK, token_weight_T)]
    return schedule_layers(*one, visual_T, valid_T, policy=policy, ep_size=ep_size, modality_LN=modality_N[None], router_normalizes=router_normalizes)[0]


def schedule_layers(
    scores_LTN: Tensor,
    expert_LTK: Tensor,
    weight_LTK: Tensor,
    token_weight_LT: Tensor,
    visual_T: Tensor,
    valid_T: Tensor,
    *,
    policy: Policy,
    ep_size: int,
    modality_LN: Tensor,
    router_normalizes: bool = True,
) -> list[Assignment]:
    """Return what `schedule` decides for each of L layers of the same tokens, in one go: one long sort is faster than many short ones.

    Their tokens stand one layer after the other in R = L·T rows. Experts keep their numbers, but where queues are made
    those of all layers are numbered through.
    """
    layers, tokens, num_experts = scores_LTN.shape
    scores_RN, expert_RK, weight_RK, token_weight_R = (x.flatten(0, 1) for x in (scores_LTN, expert_LTK, weight_LTK, token_weight_LT))
    visual_R, valid_R = visual_T.repeat(layers), valid_T.repeat(layers)
    if scores_RN.device.type == "cpu":
        check_values(scores_RN, expert_RK, weight_RK, token_weight_R, valid_R, tokens)
    effective_R = to_units(token_weight_R).masked_fill(~valid_R, 0)
    load_L = from_units(effective_R.view(layers, tokens).sum(1))
    visual_ratio_L = from_units(effective_R.masked_fill(~visual_R, 0).view(layers, tokens).sum(1)) / load_L.clamp_min(1 / ONE)
    amounts = {"tokens": valid_T.sum(), "load": load_L[:, None], "visual_ratio": visual_ratio_L[:, None], "top_k": expert_RK.shape[1]}
    capacity_LN = capacities(policy, **amounts, modality_N=modality_LN.to(scores_RN.device))
    routed = _routed_pairs(scores_RN, expert_RK, weight_RK, valid_R)
    pairs = _with_extras(routed, scores_RN, valid_T, ep_size) if policy.overflow == "expand" else routed
    executed_RC = _executed(pairs, scores_RN, token_weight_R, effective_R, capacity_LN, policy, ep_size)
    weight_RC = _weights(pairs, executed_RC, scores_RN)
    if policy.renormalize == "always" or (policy.renormalize == "router" and router_normalizes):
        weight_RC = _renormalized(weight_RC, routed.weight_TC)
    one_R = torch.ones_like(effective_R)
    rows = (executed_RC, weight_RC.to(weight_LTK.dtype), _statuses(pairs.expert_TC, executed_RC, valid_R, num_experts, expert_RK.shape[1]))
    sums = [_sum_per_expert(expert_RC, units_R, layers, num_experts) for units_R in (one_R, effective_R) for expert_RC in (routed.expert_TC, executed_RC)]
    columns = (*(x.view(layers, tokens, x.shape[1]) for x in rows), capacity_LN, visual_ratio_L, token_weight_LT, sums[0], sums[1], *map(from_units, sums[2:]))
    return [Assignment(*(column[i] for column in columns)) for i in range(layers)]


def _routed_pairs(scores_TN: Tensor, expert_TK: Tensor, weight_TK: Tensor, valid_T: Tensor) -> Pairs:
    """The router's pairs; padding has none. Half and single precision are widened here, exactly, and nowhere else."""
    padding_T1 = ~valid_T[:, None]
    score_TK = scores_TN.gather(1, expert_TK.masked_fill(padding_T1, 0).long())
    expert_TK = expert_TK.masked_fill(padding_T1, scores_TN.shape[1]).long()
    return Pairs(expert_TK, score_TK.double(), weight_TK.double().masked_fill(padding_T1, 0))


def _with_extras(pairs: Pairs, scores_TN: Tensor, valid_T: Tensor, ep_size: int) -> Pairs:
    """The pairs and, in R more columns, the extra candidates, weighted by score as the pair in slot 0 is."""
    open_TN = unchosen_scores(scores_TN, pairs.expert_TC)
    found = [home_candidates(layer_TN, valid_T, ep_size) for layer_TN in open_TN.split(max(len(valid_T), 1))]
    expert_TR, score_TR = (torch.cat(columns) for columns in zip(*found))
    weight_TR = pairs.weight_TC[:, :1] * _ratio(score_TR.double(), pairs.score_TC[:, :1])
    return Pairs(
        torch.cat([pairs.expert_TC, expert_TR], 1),
        torch.cat([pairs.score_TC, score_TR.double()], 1),
        torch.cat([pairs.weight_TC, weight_TR], 1),
    )


def _executed(pairs, scores_RN, token_weight_R, effective_R, capacity_LN, policy, ep_size) -> Tensor:
    """Return the expert that executes each pair, N for none: its own, or with rerouting another of the same rank."""
    if policy.overflow == "none":
        return pairs.expert_TC
    shape, by_entropy = pairs.expert_TC.shape, policy.load == "entropy"
    layers, num_experts = capacity_LN.shape
    units_R = effective_R if by_entropy else torch.full_like(effective_R, ONE)
    expert_P, none = _numbered(pairs.expert_TC, layers, num_experts).flatten(), layers * num_experts
    priority_P = _priorities(pairs, token_weight_R, layers, policy).flatten()
    units_P = units_R[:, None].expand(shape).flatten()
    limit_N = limit_units(capacity_LN.flatten(), len(expert_P) // layers)
    admitted_P = admit(expert_P, priority_P, units_P, limit_N)
    executed_P = expert_P.masked_fill(~admitted_P, none)
    if policy.overflow == "reroute":
        moved_P = reroute(
            Overflow(~admitted_P & (expert_P < none), expert_P, pairs.score_TC.flatten(), priority_P, units_P),
            unchosen_scores(scores_RN, pairs.expert_TC),
            limit_N - sum_by(executed_P, units_P, none),
            ep_size=ep_size,
            min_affinity=policy.min_affinity,
            shrink=scores_RN.device.type == "cpu",
        )
        executed_P = torch.minimum(executed_P, moved_P)  # none in one of the two at least
    return torch.where(executed_P < none, executed_P % num_experts, num_experts).view(shape)


def _numbered(expert_RC: Tensor, layers: int, num_experts: int) -> Tensor:
    """Return experts numbered through all layers, and L·N where there is none."""
    first_L = torch.arange(layers, device=expert_RC.device) * num_experts
    first_R1 = first_L.repeat_interleave(len(expert_RC) // layers)[:, None]
    return torch.where(expert_RC < num_experts, expert_RC + first_R1, layers * num_experts)


def _priorities(pairs: Pairs, token_weight_R: Tensor, layers: int, policy: Policy) -> Tensor:
    """Return `priorities` of every layer: a lot depends on a pair's place in its own layer."""
    columns = (pairs.score_TC, pairs.weight_TC, token_weight_R)
    if policy.priority != "random" or layers == 1:
        return priorities(*columns, policy)
    return torch.cat([priorities(*layer, policy) for layer in zip(*(x.chunk(layers) for x in columns))])


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


def _sum_per_expert(expert_RC: Tensor, units_R: Tensor, layers: int, num_experts: int) -> Tensor:
    numbered_P = _numbered(expert_RC, layers, num_experts).flatten()
    return sum_by(numbered_P, units_R[:, None].expand(expert_RC.shape).flatten(), layers * num_experts).view(layers, num_experts)
