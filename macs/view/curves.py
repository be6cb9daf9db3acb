"""What each capacity factor costs on the recorded scores: straggler factor, dropped and rerouted share over γ."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Callable

import numpy as np

from macs.config import Policy
from macs.engine.compare import Comparison, baseline_policy
from macs.trace import DROPPED, REROUTED, Trace
from macs.view.shown import Shown, settings_of

GAMMAS = tuple(np.round(np.geomspace(0.25, 2.5, 14), 3))
LIGHT = 400_000  # pairs × layers above which fewer points are scheduled
FEW = GAMMAS[::3]


@dataclass(frozen=True)
class Curve:
    """One policy over γ; arrays of equal length, by rising γ."""

    gamma: np.ndarray
    straggler: np.ndarray
    dropped: np.ndarray  # share of all pairs
    moved: np.ndarray  # dropped or rerouted


@dataclass(frozen=True)
class Curves:
    """The baseline and the policy on one input, over γ."""

    base: Curve
    policy: Curve
    run: Comparison  # whose scores they were scheduled from
    key: tuple  # every setting but γ

    def fit(self, shown: Shown) -> bool:
        """Return whether they are of the run and the settings on the page."""
        return self.run is shown.run and self.key == _key(shown)


def _key(shown: Shown) -> tuple:
    policy, baseline, ep_size = settings_of(shown.now)
    return replace(policy, gamma=1.0), baseline, ep_size


def curves(shown: Shown, cancelled: Callable[[], bool] = lambda: False) -> Curves | None:
    """Schedule the recorded scores at each γ; returns None once ``cancelled`` says that nobody waits for it."""
    policy, baseline, ep_size = settings_of(shown.now)
    run = shown.run
    pairs = sum(layer.pairs for layer in run.policy.layers)
    gammas = GAMMAS if pairs <= LIGHT else FEW

    def points(trace: Trace, at: Callable[[float], Policy]) -> Curve | None:
        rows = []
        for gamma in gammas:
            if cancelled():
                return None
            planned = trace.reschedule(at(float(gamma)), ep_size=ep_size)
            dropped = planned.share(DROPPED)
            rows.append((gamma, planned.straggler(), dropped, dropped + planned.share(REROUTED)))
        return Curve(*np.array(rows, float).T)

    base = points(run.same_time, partial(baseline_policy, baseline, policy))
    own = points(run.policy, lambda gamma: replace(policy, gamma=gamma)) if base else None
    return Curves(base, own, run, _key(shown)) if base and own else None
