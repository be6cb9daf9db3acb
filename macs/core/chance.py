"""Lots for the controls: random numbers that depend on nothing but a seed, a value and its place.

A generator would give each device its own numbers and each layer the same ones. Hashing the value instead gives the
same lot on every device and rank, and another in every layer, for there the scores are others.
"""

from __future__ import annotations

import torch
from torch import Tensor

_STEP, _MIX_1, _MIX_2 = (n - 2**64 for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))  # SplitMix64


def chance(value: Tensor, seed: int) -> Tensor:
    """Return float64 in [0, 1), of the shape of ``value``: one lot for each value and its place in the flat tensor."""
    place = torch.arange(1, value.numel() + 1, device=value.device).view(value.shape)
    lot = _mixed(_mixed(place * _STEP + seed) ^ value.double().contiguous().view(torch.int64))
    return _shifted(lot, 11).double() * 2.0**-53


def _mixed(bits: Tensor) -> Tensor:
    """Return 64 bits of which each depends on all of ``bits``; products wrap around."""
    bits = (bits ^ _shifted(bits, 30)) * _MIX_1
    bits = (bits ^ _shifted(bits, 27)) * _MIX_2
    return bits ^ _shifted(bits, 31)


def _shifted(bits: Tensor, by: int) -> Tensor:
    """Return ``bits`` moved right with zeros put in; the tensor's own shift would copy the sign."""
    return (bits >> by) & ((1 << (64 - by)) - 1)
