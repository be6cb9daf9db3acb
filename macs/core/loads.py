"""Loads as exact integers, so that a sum has the same bits on every device and in every order.

The sum of floats depends on their order, and accelerators add in any order. Here a load is an int64 number of
units, 2**40 of them for w = 1: rounding one weight costs less than 1e-12, and eight million pairs can be summed.
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
    """Return the units that each expert may hold: its capacity plus the tolerance, cut at what ``pairs`` can weigh."""
    return ((capacity_N + TOLERANCE).clamp_max(pairs + 1.0) * ONE).long()


def sum_by(index_P: Tensor, units_P: Tensor, size: int) -> Tensor:
    """Return int64 sums of ``units_P`` per index below ``size``; entries with the index ``size`` are left out."""
    total = torch.zeros(size + 1, dtype=torch.int64, device=index_P.device)
    return total.index_add_(0, index_P, units_P)[:size]
