"""One layer's schedule: who is admitted, who moves, who is dropped (DESIGN names: T tokens, N experts, K slots).

Pure functions on tensors: no model, no process group; ranks are only the number ``ep_size``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from macs.config import Policy

KEPT, REROUTED, DROPPED, PADDING, EXPANDED, UNUSED = range(6)


@dataclass(frozen=True)
class Assignment:
    """What a policy decided for one layer; ``_C`` is K slots, or K + N/ep_size under ``overflow="expand"``."""

    expert_TC: Any  # int64, expert that executes the pair; N where nothing does
    weight_TC: Any  # routing weight, 0 where nothing is executed
    status_TC: Any  # int8, KEPT .. UNUSED
    capacity_N: Any  # float, C_j in the unit of the policy's load
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
    raise RuntimeError("under construction")
