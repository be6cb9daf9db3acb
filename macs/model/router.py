"""From what a router returns to the scores of all experts, whatever the family's convention.

Routers return (first, weights, expert ids); ``first`` holds every expert's logit, or already its probability. Which of
the three readings below is right shows in the weights: they are proportional to the scores within each token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable

import torch
from torch import Tensor

SCORINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda first_TN: torch.softmax(first_TN, dim=-1, dtype=torch.float32),
    "sigmoid": lambda first_TN: torch.sigmoid(first_TN.float()),
    "given": lambda first_TN: first_TN.float(),
}


@dataclass(frozen=True)
class Reading:
    """How a model's router is to be read; the same for all its layers."""

    scoring: str
    normalizes: bool  # the weights of a token sum to one constant, whatever its scores


def read_router(first_TN: Tensor, weight_TK: Tensor, expert_TK: Tensor, valid_T: Tensor, *, declared: str | None = None) -> Reading:
    """Find the reading that the weights show, or confirm the declared one (DESIGN §6).

    ``weight_TK`` as the router gave it, without a per-expert scale. Raises ValueError when no reading, or not the
    declared one, makes weight ÷ score constant within every token.
    """
    first_TN, weight_TK, expert_TK = first_TN[valid_T], weight_TK[valid_T], expert_TK[valid_T]
    limits = torch.finfo(weight_TK.dtype)
    tolerance = max(2.0 * limits.eps, 1e-5)  # each side was rounded once to the weights' dtype
    exact_TK = weight_TK >= limits.smallest_normal  # below it weights lose digits, and 0 tells nothing
    ratios = {name: weight_TK.float() / read(first_TN).gather(1, expert_TK) for name, read in SCORINGS.items()}
    spreads = {name: _spread(ratio_TK, exact_TK) for name, ratio_TK in ratios.items()}
    best = declared or min(spreads, key=spreads.__getitem__)
    if not spreads[best] <= tolerance:
        raise ValueError(
            f"The router's weights are not proportional to {declared or ', '.join(SCORINGS)} scores of its experts, so what "
            "it prefers cannot be read; this model is not supported."
        )
    return Reading(best, _normalizes(weight_TK.float().sum(1), ratios[best][:, 0], tolerance))


def _normalizes(sum_T: Tensor, ratio_T: Tensor, tolerance: float) -> bool:
    """A router that normalises gives every token the same sum; one that does not, the same weight ÷ score."""
    if len(sum_T) > 1:
        return float(sum_T.max() / sum_T.min()) - 1.0 <= tolerance
    return abs(float(ratio_T[0]) - 1.0) > tolerance  # one token alone: its weights are its scores, or are not


def _spread(ratio_TK: Tensor, exact_TK: Tensor) -> float:
    """Return max ÷ min − 1 within a token, the largest of all tokens; infinite if a score is not positive."""
    if not bool((ratio_TK[exact_TK] > 0).all()):
        return float("inf")
    most_T = torch.where(exact_TK, ratio_TK, -torch.inf).amax(1)
    least_T = torch.where(exact_TK, ratio_TK, torch.inf).amin(1)
    return float(torch.where(exact_TK.any(1), most_T / least_T - 1.0, 0.0).max())
