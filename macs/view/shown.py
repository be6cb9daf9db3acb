"""What is on the page: the last complete run, the settings' plan for it, and where the reader looks. Immutable."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from macs.config import Policy
from macs.engine.compare import Comparison
from macs.trace import DROPPED, KEPT, REROUTED, LayerTrace, Trace
from macs.view.picture import Picture, pictures

SAME = 0.05  # relative difference of straggler factors up to which two runs take the same time; one pair more can be 3 %
BASELINE = "token_drop"  # what the controls show where no baseline could be scheduled
BASELINES = ("same_time", "same_gamma")  # the baseline row that maps and queues show beside the policy


@dataclass(frozen=True)
class Shown:
    """One page's content."""

    run: Comparison  # what ran; its answers are the ones shown
    now: Comparison  # the same input under the settings: ``run`` itself, or a plan from its recorded scores
    pictures: tuple[Picture, ...]
    source: str  # "recorded", "live" or "file"
    seconds: float = 0.0  # a live run's, by the clock on the wall
    measured: bool = False  # real ranks executed the experts, each with its own clock
    layer: int = 0  # position among the MoE layers
    beside: str = BASELINES[0]
    example: str = ""  # name of the recorded example; none of a live run or a file
    notices: tuple[str, ...] = ()  # plain sentences of the engine and the intake that go with this run
    focus: tuple[str, int] | None = None  # ("token", t), ("expert", e) or ("rank", g)

    @property
    def policy(self) -> Trace:
        return self.now.policy

    @property
    def base(self) -> Trace:
        return getattr(self.now, self.beside)

    @property
    def layers(self) -> tuple[LayerTrace, LayerTrace, LayerTrace]:
        """Return the layer looked at under vanilla, the baseline and the policy."""
        return tuple(trace.layers[self.layer] for trace in (self.now.vanilla, self.base, self.policy))

    @property
    def number(self) -> int:
        """Return the decoder layer's index, which is not its position where some layers are dense."""
        return self.policy.layers[self.layer].layer

    @property
    def scored(self) -> bool:
        """Return whether router scores are there; without them the run alone is shown."""
        return self.policy.scored

    @property
    def same_time(self) -> str:
        """Return whether the baseline at equal time is: "met", "near" (it ran, and took another time after all), "fixed" or "unreached"."""
        if not self.now.same_time_reached:
            return "unreached"
        ours, theirs = self.policy.straggler(), self.now.same_time.straggler()
        if abs(theirs - ours) <= SAME * ours:
            return "met"
        return "fixed" if self.now.same_time.policy.overflow == "none" else "near"  # what drops nothing has no γ to set

    @property
    def equalized(self) -> bool:
        """Return whether the baseline at equal time has its γ from its own run's scores, and not from vanilla's before it ran."""
        return self.now.planned or self.now.same_time.policy.gamma == self.now.own_gamma[0]

    def answered(self, row: str) -> bool:
        """Return whether a row's answer is that of the decisions beside it."""
        ran, now = getattr(self.run, row), getattr(self.now, row)
        moved = now.ep_size != ran.ep_size and now.policy.overflow in ("reroute", "expand")  # these depend on the ranks
        return now.policy == ran.policy and not moved

    @property
    def stale(self) -> bool:
        """Return whether the answers belong to other settings than the plots."""
        return self.now.planned


def open_run(run: Comparison, source: str, *, beside: str = BASELINES[0], **about: Any) -> Shown:
    """Return the page's content for a complete run, looking at the layer that vanilla's slowest rank holds back most.

    ``about`` is seconds, measured and the intake's notices of a live run, or the name of an example.
    """
    about["notices"] = (*about.get("notices", ()), *map(str, run.policy.about.get("notices", ())))
    ep_size = run.vanilla.ep_size
    layer = int(np.argmax([x.straggler(ep_size) for x in run.vanilla.layers]))
    return at_layer(Shown(run, run, pictures(run.policy), source, beside=beside, **about), layer)


def at_layer(shown: Shown, layer: int) -> Shown:
    """Return the content with another layer looked at and, there, the token that has most to tell."""
    moved = replace(shown, layer=layer)
    return replace(moved, focus=heaviest_loser(moved))


def plan(shown: Shown, policy: Policy, baseline: str, ep_size: int) -> Shown:
    """Return the content under other settings; at the run's own it is the run. Raises ValueError as ``Comparison.plan``."""
    run = shown.run
    if (policy, baseline, ep_size) == settings_of(run):
        return replace(shown, now=run)
    if (policy, baseline, ep_size) == settings_of(shown.now):
        return shown
    now = run.plan(policy, baseline=baseline, ep_size=ep_size)
    focus = None if shown.focus and shown.focus[0] == "rank" and shown.focus[1] >= ep_size else shown.focus
    return replace(shown, now=now, focus=focus)


def equalized(shown: Shown) -> Shown:
    """Return the content with the baseline at the γ that its own run's scores give for the policy's time, looked at beside the policy."""
    policy, baseline, ep_size = settings_of(shown.now)
    now = shown.now if shown.equalized else shown.run.plan(policy, baseline=baseline, ep_size=ep_size)
    return replace(shown, now=now, beside="same_time")


def placed(shown: Shown, ep_size: int) -> Shown:
    """Return the content with the experts on the engine's number of ranks, where that divides them."""
    policy, baseline, _ = settings_of(shown.now)
    return plan(shown, policy, baseline, ep_size) if shown.policy.num_experts % ep_size == 0 else shown


def settings_of(comparison: Comparison) -> tuple[Policy, str, int]:
    """Return the policy, the baseline's preset and the number of ranks of a comparison."""
    baseline = comparison.same_time.policy.preset if comparison.policy.scored else BASELINE
    return comparison.policy.policy, baseline, comparison.policy.ep_size


def heaviest_loser(shown: Shown) -> tuple[str, int] | None:
    """Return the focus on the heaviest token that lost a pair, else that had one moved, else the heaviest patch."""
    if not shown.scored:
        return None
    layer, visual_T = shown.policy.layers[shown.layer], shown.policy.tokens.visual_T
    status_TC, weight_T = layer.decision.status_TC, layer.decision.token_weight_T
    for status in (DROPPED, REROUTED, KEPT):
        candidates_T = (status_TC == status).any(1) & visual_T
        if not candidates_T.any():
            candidates_T = (status_TC == status).any(1)
        if candidates_T.any():
            return "token", int(np.argmax(np.where(candidates_T, weight_T, -1.0)))
    return None
