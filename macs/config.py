"""The policy: which load is counted, how capacity is set, what happens to overflow.

Three independent axes (load, capacity, overflow) and their parameters, checked once and then frozen.
This module knows no tensor, no model and no page.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Mapping

VERSION = "0.1.0"  # of this package, written into every trace

CHOICES: dict[str, tuple[str, ...]] = {
    "load": ("tokens", "entropy"),
    "capacity": ("static", "modality"),
    "overflow": ("none", "drop", "reroute", "expand"),
    "priority": ("score", "weighted_score", "weight", "random"),
    "normalize": ("image", "batch"),
    "capacity_basis": ("tokens", "effective"),
    "renormalize": ("router", "always", "never"),
    "entropy_source": ("first", "layer", "embedding"),
    "entropy_order": ("own", "shuffled"),
    "phase": ("prefill", "all"),
}
RANGES: dict[str, tuple[float, float]] = {
    "gamma": (0.0, 1e6),
    "delta": (0.0, 100.0),
    "rho": (0.0, 2.0),
    "min_affinity": (0.0, 1.0),
    "eps": (1e-12, 1.0),
}


@dataclass(frozen=True, kw_only=True)
class Policy:
    """One way to limit expert load; raises ValueError on a value outside ``CHOICES`` or ``RANGES`` (MACS §3)."""

    load: str = "entropy"  # what a pair counts: 1, or the entropy weight w of its token (§3.2)
    capacity: str = "modality"  # the same for every expert, or scaled by modality mix (§3.3)
    overflow: str = "reroute"  # what happens to pairs that do not fit (§3.4)
    priority: str = "weighted_score"  # who is admitted first: router score, score x load weight, routing weight, or chance
    gamma: float = 1.0  # capacity factor
    delta: float = 1.0  # entropy sensitivity
    rho: float = 0.5  # adaptation strength
    normalize: str = "image"  # whose mean and deviation standardise the entropy
    capacity_basis: str = "tokens"  # C_base from the token count (eq. 3) or from the effective load
    min_affinity: float = 0.0  # least score of a reroute target, as a share of the original expert's
    renormalize: str = "router"  # whether surviving weights are scaled back to the token's original sum
    entropy_source: str = "first"  # hidden state whose entropy weighs a visual token
    entropy_order: str = "own"  # whose entropy weighs a visual token: its own, or by chance another's of its image
    phase: str = "prefill"  # decode steps are scheduled too with "all"
    eps: float = 1e-6  # keeps the standardised entropy finite
    seed: int = 0  # of what is left to chance: priority "random", entropy_order "shuffled"

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            value = getattr(self, name)
            if not isinstance(value, str) or value not in allowed:
                raise ValueError(f"{name} is {value!r}; use one of {', '.join(allowed)}.")
        for name, (low, high) in RANGES.items():
            object.__setattr__(self, name, checked_number(name, getattr(self, name), low, high))
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed < 2**31:
            raise ValueError(f"seed is {self.seed!r}; use a whole number from 0 to {2**31 - 1}.")

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain JSON values."""
        return asdict(self)

    @property
    def preset(self) -> str:
        """Name in ``NAMED`` with the same load, capacity, overflow, priority and entropy order, or ``"custom"``."""
        for name, settings in NAMED.items():
            if all(getattr(self, axis) == value for axis, value in ({"entropy_order": "own"} | settings).items()):
                return name
        return "custom"

    def with_(self, **changes: Any) -> Policy:
        """Return a copy with ``changes``; raises ValueError as the constructor does, or on an unknown field."""
        _reject_unknown(changes)
        return replace(self, **changes)


def _axes(load: str, capacity: str, overflow: str, priority: str) -> dict[str, str]:
    return {"load": load, "capacity": capacity, "overflow": overflow, "priority": priority}


PRESETS: dict[str, dict[str, str]] = {
    "vanilla": _axes("tokens", "static", "none", "score"),
    "token_drop": _axes("tokens", "static", "drop", "score"),
    "expanded_drop": _axes("tokens", "static", "expand", "score"),
    "macs_no_reroute": _axes("entropy", "modality", "drop", "weighted_score"),
    "macs": _axes("entropy", "modality", "reroute", "weighted_score"),
}
# MACS without one of its parts; ``macs_no_reroute`` is the third of them, as the paper's table has it.
ABLATIONS: dict[str, dict[str, str]] = {
    "macs_no_entropy": PRESETS["macs"] | {"load": "tokens"},
    "macs_static": PRESETS["macs"] | {"capacity": "static"},
}
# What a policy must beat before its idea can be thanked for the result. All are seeded and as exact as the presets.
CONTROLS: dict[str, dict[str, str]] = {
    "random_drop": _axes("tokens", "static", "drop", "random"),  # token drop's capacities; who is admitted is drawn by lot
    "lowest_weight_drop": _axes("tokens", "static", "drop", "weight"),  # the same; the lowest routing weights are dropped
    "macs_shuffled": PRESETS["macs"] | {"entropy_order": "shuffled"},  # the same w in each image, on the wrong tokens
}
NAMED = PRESETS | ABLATIONS | CONTROLS


def preset(name: str, **changes: Any) -> Policy:
    """Return the policy of this name in ``NAMED`` with ``changes`` put in; raises ValueError on an unknown name, field or value."""
    if not isinstance(name, str) or name not in NAMED:
        raise ValueError(f"policy is {name!r}; use one of {', '.join(NAMED)}.")
    _reject_unknown(changes)
    return Policy(**{**NAMED[name], **changes})


def policy_from_dict(values: Mapping[str, Any]) -> Policy:
    """Rebuild a policy from ``Policy.to_dict``; raises ValueError on an unknown field or a bad value."""
    _reject_unknown(values)
    return Policy(**values)


def checked_number(name: str, value: Any, low: float, high: float) -> float:
    """Return ``value`` as a finite float in [low, high]; raises ValueError with one sentence otherwise."""
    number = not isinstance(value, bool) and isinstance(value, (int, float))
    if not number or not math.isfinite(value) or not low <= value <= high:
        raise ValueError(f"{name} is {value!r}; use a number from {low:g} to {high:g}.")
    return float(value)


def check_ep_size(ep_size: Any, num_experts: int, name: str = "ep_size") -> int:
    """Return ``ep_size`` if that many ranks divide the experts; raises ValueError listing the sizes that do."""
    sizes = [g for g in range(1, num_experts + 1) if num_experts % g == 0]
    if isinstance(ep_size, bool) or not isinstance(ep_size, int) or ep_size not in sizes:
        listed = ", ".join(map(str, sizes))
        raise ValueError(f"{name} is {ep_size!r}, which does not divide {num_experts} experts; use one of {listed}.")
    return ep_size


def _reject_unknown(values: Mapping[str, Any]) -> None:
    known = {field.name for field in fields(Policy)}
    for name in values:
        if name not in known:
            raise ValueError(f"A policy has no field {name!r}; it has {', '.join(sorted(known))}.")
