"""How much load an expert may take, and which modality an expert serves (MACS §3.1, §3.3)."""

from __future__ import annotations

import torch
from torch import Tensor

from macs.config import Policy, checked_number


def capacities(policy: Policy, *, tokens: Tensor, load: Tensor, visual_ratio: Tensor, top_k: int, modality_N: Tensor) -> Tensor:
    """Return C_N in float64, in the unit of the policy's load and at least 1 (eq. 3 and §3.3).

    ``tokens`` (T without padding), ``load`` (sum of w) and ``visual_ratio`` (R_v) are 0-d; ``modality_N`` holds
    +1 for a visual expert, -1 for a text expert, 0 for a shared one, and is not looked at with capacity="static".
    Of several layers at once, [L, 1] and [L, N] give C_LN.
    """
    amount = tokens if policy.capacity_basis == "tokens" else load
    base = policy.gamma * amount.double() * top_k / modality_N.shape[-1]
    if policy.capacity == "modality":
        capacity_N = base * (1.0 + policy.rho * modality_N.double() * (visual_ratio - 0.5))
    else:
        capacity_N = base.expand(modality_N.shape)
    if policy.load == "tokens":  # a whole number of pairs; 1e-9 keeps 3.0000000001 from becoming 4
        capacity_N = torch.ceil(capacity_N - 1e-9)
    return capacity_N.clamp_min(1.0)


def modality_groups(visual_pairs_N: Tensor, text_pairs_N: Tensor, margin: float = 0.2) -> Tensor:
    """Return m_N (int8): +1 for a visual expert, -1 for a text expert, 0 for a shared one (§3.3).

    From the pairs that each expert got from visual and from text tokens of a calibration set. Raises ValueError
    on unlike shapes, negative counts, a set without visual or without text pairs, or a margin outside [0, 0.5].
    """
    margin = checked_number("margin", margin, 0.0, 0.5)
    if visual_pairs_N.ndim != 1 or visual_pairs_N.shape != text_pairs_N.shape:
        shapes = f"{tuple(visual_pairs_N.shape)} and {tuple(text_pairs_N.shape)}"
        raise ValueError(f"Visual and text pair counts have shapes {shapes}; pass one count per expert in each.")
    share_N = {}
    for kind, pairs_N in {"visual": visual_pairs_N.double(), "text": text_pairs_N.double()}.items():
        if not bool((pairs_N >= 0).all()) or not 0 < float(pairs_N.sum()) < float("inf"):
            raise ValueError(f"The calibration set has no usable {kind} pairs; give it prompts with text and images.")
        share_N[kind] = pairs_N / pairs_N.sum()
    used_N = share_N["visual"] + share_N["text"]
    preference_N = share_N["visual"] / used_N  # NaN for an expert nobody used, which compares as neither
    text_N = preference_N <= 0.5 - margin + 1e-12
    visual_N = preference_N >= 0.5 + margin - 1e-12
    return torch.where(visual_N, 1, torch.where(text_N, -1, 0)).to(torch.int8)
