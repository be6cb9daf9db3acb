"""Loads as exact integers, so that a sum has the same bits on every device and in every order.

Floating sums depend on their order, and accelerators add in any order. A load here is an int64 count of
``2**-40`` (w = 1 is ``2**40`` units): 8 million pairs fit, and rounding one weight costs less than 1e-12.
"""

from __future__ import annotations

import torch
from torch import Tensor

ONE = 2**40  # units of a load weight of 1
TOLERANCE = 1e-6  # how far a running sum may pass a capacity (§3.4)


def to_units(load: Tensor) -> Tensor:
    """Return load weights in [0, 1] as int64 units."""
    return (load.double() * ONE).round().long()


def from_units(units: Tensor) -> Tensor:
    """Return units as float64 load."""
    return units.double() / ONE


def limit_units(capacity_N: Tensor, pairs: int) -> Tensor:
    """Return the most units each expert may hold: its capacity and the tolerance, at most what ``pairs`` could weigh."""
    return ((capacity_N + TOLERANCE).clamp_max(pairs + 1.0) * ONE).floor().long()


def sum_by_expert(expert_P: Tensor, units_P: Tensor, num_experts: int) -> Tensor:
    """Return the int64 sum of ``units_P`` per expert; pairs with expert id ``num_experts`` (nobody's) are left out."""
    total = torch.zeros(num_experts + 1, dtype=torch.int64, device=expert_P.device)
    return total.index_add_(0, expert_P, units_P)[:num_experts]
