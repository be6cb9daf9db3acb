"""One layer's schedule: who is admitted, who moves, who is dropped (DESIGN names: T tokens, N experts, K slots).

Pure functions on tensors: no model, no process group; ranks are only the number ``ep_size``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from macs.config import Policy
from macs.core.admission import admit, home_candidates, unchosen_scores
from macs.core.capacity import capacities
from macs.core.checks import check_arguments, check_values
from macs.core.loads import ONE, from_units, limit_units, sum_by_expert, to_units
from macs.core.reroute import reroute

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


def schedule(
    scores_TN: torch.Tensor,
    expert_TK: torch.Tensor,
    weight_TK: torch.Tensor,
    token_weight_T: torch.Tensor,
    visual_T: torch.Tensor,
    valid_T: torch.Tensor,
    *,
    policy: Policy,
    ep_size: int,
    modality_N: torch.Tensor | None = None,
    router_normalizes: bool = True,
) -> Assignment:
    """Decide one layer."""
    check_arguments(scores_TN, expert_TK, weight_TK, token_weight_T, visual_T, valid_T, policy, ep_size, modality_N)
    if scores_TN.device.type == "cpu":
        check_values(scores_TN, expert_TK, weight_TK, token_weight_T, valid_T)
    num_experts, (_, top_k) = scores_TN.shape[1], expert_TK.shape
    effective_T = to_units(token_weight_T).masked_fill(~valid_T, 0)
    visual_ratio = from_units(effective_T.masked_fill(~visual_T, 0).sum()) / from_units(effective_T.sum().clamp_min(1))
    if modality_N is None:
        modality_N = torch.zeros(num_experts, dtype=torch.int8, device=scores_TN.device)
    capacity_N = capacities(
        policy,
        tokens=valid_T.sum(),
        load=from_units(effective_T.sum()),
        visual_ratio=visual_ratio,
        top_k=top_k,
        modality_N=modality_N.to(scores_TN.device),
    )
    expert_TC, weight_TC, status_TC = _decide(
        scores_TN, expert_TK, weight_TK, token_weight_T, valid_T, effective_T, capacity_N, policy, ep_size
    )
    if policy.renormalize == "always" or (policy.renormalize == "router" and router_normalizes):
        weight_TC = _renormalised(weight_TC, weight_TK, status_TC)
    routed_TK = expert_TK.masked_fill(~valid_T[:, None], num_experts)

    def totals(expert_TX: Tensor, units_T: Tensor) -> Tensor:
        return sum_by_expert(expert_TX.flatten(), units_T[:, None].expand(expert_TX.shape).flatten(), num_experts)

    one_T = torch.ones_like(effective_T)
    return Assignment(
        expert_TC=expert_TC,
        weight_TC=weight_TC,
        status_TC=status_TC,
        capacity_N=capacity_N,
        visual_ratio=visual_ratio,
        token_weight_T=token_weight_T,
        tokens_before_N=totals(routed_TK, one_T),
        tokens_after_N=totals(expert_TC, one_T),
        effective_before_N=from_units(totals(routed_TK, effective_T)),
        effective_after_N=from_units(totals(expert_TC, effective_T)),
    )


def _decide(scores_TN, expert_TK, weight_TK, token_weight_T, valid_T, effective_T, capacity_N, policy, ep_size):
    num_experts, padding_T1 = scores_TN.shape[1], ~valid_T[:, None]
    router_TK = expert_TK.masked_fill(padding_T1, 0)  # some expert, so that it can be an index
    expert_TC = expert_TK.masked_fill(padding_T1, num_experts)
    score_TC = scores_TN.gather(1, router_TK).double()  # the one place where router scores are widened
    weight_TC = weight_TK.double()
    status_TC = torch.zeros_like(expert_TK).masked_fill(padding_T1, PADDING)
    if policy.overflow == "none":
        dead = expert_TC == num_experts
        return expert_TC, weight_TK.masked_fill(dead, 0), status_TC.to(torch.int8)
    units_T = effective_T if policy.load == "entropy" else torch.full_like(effective_T, ONE)
    value_T = token_weight_T.double() if (policy.load, policy.priority) == ("entropy", "weighted_score") else torch.ones_like(token_weight_T.double())
    limit_N = limit_units(capacity_N, expert_TK.numel() + scores_TN.numel())
    if policy.overflow == "expand":
        extra_TR, extra_score_TR = home_candidates(unchosen_scores(scores_TN, router_TK), valid_T, ep_size)
        extra_score_TR = extra_score_TR.double()
        expert_TC = torch.cat([expert_TC, extra_TR], 1)
        weight_TC = torch.cat([weight_TC, weight_TC[:, :1] * _ratio(extra_score_TR, score_TC[:, :1])], 1)
        score_TC = torch.cat([score_TC, extra_score_TR], 1)
    priority_TC = score_TC * value_T[:, None]
    units_TC = units_T[:, None].expand(expert_TC.shape)
    kept_TC = admit(expert_TC.flatten(), priority_TC.flatten(), units_TC.flatten(), limit_N).view(expert_TC.shape)
    top_k = expert_TK.shape[1]
    status_TC = torch.where(kept_TC, KEPT, DROPPED)
    status_TC[:, top_k:] = torch.where(kept_TC[:, top_k:], EXPANDED, UNUSED)
    status_TC.masked_fill_(padding_T1, PADDING)
    final_TC = expert_TC.masked_fill(~kept_TC, num_experts)
    if policy.overflow == "reroute":
        held_N = sum_by_expert(final_TC.flatten(), units_TC.flatten(), num_experts)
        target_TK = reroute(
            unchosen_scores(scores_TN, router_TK), router_TK, score_TC, status_TC == DROPPED, limit_N - held_N, units_T, priority_TC.flatten(),
            ep_size=ep_size, min_affinity=policy.min_affinity, shrink=scores_TN.device.type == "cpu",
        )
        moved_TK = target_TK < num_experts
        final_TC = torch.where(moved_TK, target_TK, final_TC)
        new_TK = scores_TN.gather(1, target_TK.clamp_max(num_experts - 1)).double()
        weight_TC = torch.where(moved_TK, weight_TC * _ratio(new_TK, score_TC), weight_TC)
        status_TC.masked_fill_(moved_TK, REROUTED)
    return final_TC, weight_TC.masked_fill(final_TC == num_experts, 0).to(weight_TK.dtype), status_TC.to(torch.int8)


def _ratio(new: Tensor, old: Tensor) -> Tensor:
    return torch.where(old > 0, new / old, 0.0)


def _renormalised(weight_TC: Tensor, weight_TK: Tensor, status_TC: Tensor) -> Tensor:
    changed_T1 = ((status_TC != KEPT) & (status_TC != PADDING) & (status_TC != UNUSED)).any(-1, keepdim=True)
    left_T1 = weight_TC.double().sum(-1, keepdim=True)
    scale_T1 = torch.where(changed_T1 & (left_T1 > 0), weight_TK.double().sum(-1, keepdim=True) / left_T1, 1.0)
    return (weight_TC.double() * scale_T1).to(weight_TK.dtype)
