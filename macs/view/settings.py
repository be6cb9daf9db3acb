"""The settings of the page as data: every field of a policy with its control, and back from values to a policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping

from macs.config import CHOICES, NAMED, Policy, checked_number
from macs.view.words import Words

BASELINE = "token_drop"
DEFAULT_LENGTH = 24


@dataclass(frozen=True)
class Field:
    """One control: ``kind`` is choice, menu, slider or number; ``word`` names its label, and with ``_i`` what it means."""

    name: str
    word: str
    kind: str
    low: float = 0.0
    high: float = 1.0
    step: float = 0.1
    values: tuple[str, ...] = ()

    def choices(self, words: Words) -> list[tuple[str, Any]]:
        """Return (text, value) of a choice in one language."""
        return [(self.text(value, words), value) for value in self.values]

    def text(self, value: str, words: Words) -> str:
        """Return how a value reads."""
        if self.name in ("preset", "baseline"):
            return words.policy(value)
        return str(value) if self.name == "ep_size" else words(f"c_{self.name}_{value}")


def _choice(name: str, word: str, values: tuple[str, ...] | None = None) -> Field:
    return Field(name, word, "choice", values=CHOICES[name] if values is None else values)


SLIDERS = (
    Field("delta", "delta", "slider", 0.0, 4.0, 0.1),
    Field("gamma", "gamma", "slider", 0.25, 2.5, 0.05),
)
PANEL = (
    Field("preset", "set_policy", "menu", values=(*NAMED, "custom")),
    Field("baseline", "set_base", "menu", values=tuple(NAMED)),
    _choice("ep_size", "set_ep", ()),  # sizes that divide the experts: known with the run
    Field("rho", "set_rho", "slider", 0.0, 2.0, 0.05),
    _choice("load", "set_load"),
    _choice("capacity", "set_capacity"),
    _choice("capacity_basis", "set_basis"),
    _choice("overflow", "set_overflow"),
    _choice("priority", "set_priority"),
    Field("min_affinity", "set_affinity", "slider", 0.0, 1.0, 0.05),
    _choice("renormalize", "set_renorm"),
    _choice("entropy_source", "set_source"),
    _choice("normalize", "set_norm"),
    _choice("entropy_order", "set_order"),
    Field("seed", "set_seed", "number", 0, 2**31 - 1, 1),
    _choice("phase", "set_phase"),
    Field("eps", "set_eps", "number", 1e-12, 1.0),
    Field("max_new_tokens", "set_length", "number", 1, 512, 1),
)
FIELDS = SLIDERS + PANEL
AXES = ("load", "capacity", "overflow", "priority", "entropy_order")  # what a policy's name sets
OUTSIDE = ("preset", "baseline", "ep_size", "max_new_tokens")  # not fields of a policy


def values_of(policy: Policy, baseline: str, ep_size: int, max_new_tokens: int = DEFAULT_LENGTH) -> dict[str, Any]:
    """Return the value of every control."""
    outside = {"preset": policy.preset, "baseline": baseline, "ep_size": ep_size, "max_new_tokens": max_new_tokens}
    return {field.name: outside[field.name] if field.name in OUTSIDE else getattr(policy, field.name) for field in FIELDS}


def policy_of(values: Mapping[str, Any]) -> Policy:
    """Return the policy that the controls describe; raises ValueError with one sentence on a value it cannot take."""
    return Policy(**{name: value for name, value in values.items() if name not in OUTSIDE})


def axes_of(name: str) -> tuple[str, ...]:
    """Return what a policy's name sets, in the order of ``AXES``."""
    return tuple(({"entropy_order": "own"} | NAMED[name])[axis] for axis in AXES)


def within_reach(name: str, value: Any) -> float:
    """Return a number that the page's slider of this name reaches; raises ValueError with one sentence otherwise."""
    field = next(field for field in FIELDS if field.name == name)
    return checked_number(name, value, field.low, field.high)


def answer_length(value: Any) -> int:
    """Return the most tokens of an answer; raises ValueError with one sentence on what is no such number."""
    field = next(field for field in FIELDS if field.name == "max_new_tokens")
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not field.low <= value <= field.high or value != int(value):
        raise ValueError(f"max_new_tokens is {value!r}; use a whole number from {field.low:g} to {field.high:g}.")
    return int(value)


def divisors(experts: int) -> tuple[int, ...]:
    """Return the numbers of ranks that divide the experts."""
    return tuple(g for g in range(1, experts + 1) if experts % g == 0)
