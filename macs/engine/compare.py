"""The ledger's four runs of one request: vanilla, token count at the same gamma and at the same time, the policy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from macs.config import NAMED, Policy, preset
from macs.engine.base import Engine, Hooks, Progress, Request
from macs.trace import UNSCORED, LayerTrace, Trace
from macs.trace_file import load_trace, save_trace

MAX_GAMMA = 8.0  # above it no expert of a layer that anyone would serve is cut
GAMMA_STEP = 0.01  # of the search for equal time
SHARED = ("delta", "rho", "normalize", "min_affinity", "entropy_source", "renormalize", "phase", "eps", "seed")  # by policy and baseline


@dataclass(frozen=True)
class Comparison:
    """Four traces of one request; after ``plan`` the decisions are new and the answers are still the last run's."""

    vanilla: Trace
    same_gamma: Trace  # baseline at the policy's gamma
    same_time: Trace  # baseline at the gamma whose straggler factor is the policy's
    policy: Trace
    same_time_reached: bool  # False: no gamma up to MAX_GAMMA makes the baseline that slow
    planned: bool = False  # True: scheduled again from recorded scores since the run

    def plan(self, policy: Policy, *, baseline: str = "token_drop", ep_size: int | None = None) -> Comparison:
        """Return the decisions of ``policy`` and its baselines on the recorded scores, without the model.

        Each trace keeps the scores of its own run, so at unchanged settings the decisions are the run's own.
        Of a trace without scores only the number of ranks can change; raises ValueError for anything else.
        """
        ep_size = ep_size or self.policy.ep_size
        if not self.policy.scored and baseline != "token_drop":
            raise ValueError(UNSCORED)
        new = self.policy.reschedule(policy, ep_size=ep_size)
        if not new.scored:
            return alone(new)
        gamma, reached = equal_time_gamma(self.same_time, new.straggler(), baseline, ep_size, policy)
        return replace(
            self,
            vanilla=replace(self.vanilla, ep_size=ep_size),  # nothing in its decisions depends on the ranks
            same_gamma=self.same_gamma.reschedule(baseline_policy(baseline, policy, policy.gamma), ep_size=ep_size),
            same_time=self.same_time.reschedule(baseline_policy(baseline, policy, gamma), ep_size=ep_size),
            policy=new,
            same_time_reached=reached,
            planned=True,
        )

    @cached_property
    def own_gamma(self) -> tuple[float, bool]:
        """Return the gamma at which the baseline takes the policy's time on its own run's scores, and whether any does.

        ``compare`` has only vanilla's scores when it chooses a gamma, and the baseline's run then routes otherwise.
        """
        return equal_time_gamma(self.same_time, self.policy.straggler(), self.same_time.policy.preset, policy=self.policy.policy)


def alone(trace: Trace) -> Comparison:
    """Return a comparison that is one trace in all places: there are no scores from which to schedule another."""
    return Comparison(trace, trace, trace, trace, True)


NAMES = ("vanilla", "same_gamma", "same_time", "policy")


def compare(
    engine: Engine, request: Request, policy: Policy, *, baseline: str = "token_drop", ep_size: int | None = None, hooks: Hooks = Hooks()
) -> Comparison:
    """Run ``request`` four times and return the traces; raises ValueError or Stopped as the engine does."""

    def run(index: int, what: Policy, reference=None):
        def report(step: Progress) -> None:
            hooks.progress(replace(step, policy_index=index, policies=4))

        return engine.run(request, what, ep_size=ep_size, reference=reference, hooks=Hooks(report, hooks.stop))

    counted = baseline_policy(baseline, policy, policy.gamma)  # refuses what is no baseline before anything runs
    vanilla = run(0, preset("vanilla", entropy_source=policy.entropy_source, delta=policy.delta, normalize=policy.normalize))
    chosen = run(1, policy, vanilla)
    same_gamma = run(2, counted, vanilla)
    gamma, reached = equal_time_gamma(vanilla.trace, chosen.trace.straggler(), baseline, chosen.trace.ep_size, policy)
    same_time = run(3, baseline_policy(baseline, policy, gamma), vanilla)
    return Comparison(vanilla.trace, same_gamma.trace, same_time.trace, chosen.trace, reached)


def baseline_policy(baseline: str, policy: Policy, gamma: float) -> Policy:
    """Return the baseline of this name at ``gamma``, with every setting that its name leaves open taken from ``policy``."""
    if not isinstance(baseline, str) or baseline not in NAMED:
        raise ValueError(f"baseline is {baseline!r}; use one of {', '.join(NAMED)}.")
    basis = {"capacity_basis": policy.capacity_basis} if NAMED[baseline]["load"] == "entropy" else {}  # a count of tokens has one basis
    return preset(baseline, gamma=gamma, **basis, **{name: getattr(policy, name) for name in SHARED})


def equal_time_gamma(
    trace: Trace, target: float, baseline: str = "token_drop", ep_size: int | None = None, policy: Policy | None = None
) -> tuple[float, bool]:
    """Return the least gamma at which the baseline's straggler factor reaches ``target``, and whether any does.

    Bisection on recorded scores: more capacity never lowers the fullest rank's tokens. The baseline's other settings are
    those of ``policy``, else of the trace. A baseline that drops nothing has no gamma to find: it gets the policy's.
    """
    ep_size, policy = ep_size or trace.ep_size, policy or trace.policy
    if baseline_policy(baseline, policy, policy.gamma).overflow == "none":
        return policy.gamma, True

    def straggler(steps: int) -> float:
        gamma = steps * GAMMA_STEP
        if all(NAMED[baseline][axis] == NAMED["token_drop"][axis] for axis in ("load", "capacity", "overflow")):
            return float(np.mean([_drop_straggler(layer, gamma, ep_size) for layer in trace.layers]))
        return trace.reschedule(baseline_policy(baseline, policy, gamma), ep_size=ep_size).straggler()

    low, high = 0, round(MAX_GAMMA / GAMMA_STEP)
    if straggler(high) < target - 1e-9:
        return MAX_GAMMA, False
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if straggler(middle) >= target - 1e-9 else (middle, high)
    return high * GAMMA_STEP, True


def _drop_straggler(layer: LayerTrace, gamma: float, ep_size: int) -> float:
    """Return the straggler factor of token drop from counts alone: an expert executes min(routed, capacity)."""
    capacity = max(1.0, np.ceil(gamma * layer.pairs / layer.num_experts - 1e-9))
    after_N = np.minimum(layer.decision.tokens_before_N, capacity)
    return float(after_N.reshape(ep_size, -1).sum(1).max() / max(layer.pairs / ep_size, 1e-12))


def save_comparison(comparison: Comparison, folder: str | Path) -> None:
    """Write the four traces of a run into ``folder``, one file each."""
    assert not comparison.planned, "only decisions that ran are saved"
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        save_trace(getattr(comparison, name), Path(folder) / f"{name}.npz")


def load_comparison(folder: str | Path) -> Comparison:
    """Read what ``save_comparison`` wrote; raises ValueError if a file is missing or damaged."""
    traces = {name: load_trace(Path(folder) / f"{name}.npz") for name in NAMES}
    reached = traces["same_time"].policy.gamma < MAX_GAMMA
    return Comparison(**traces, same_time_reached=reached)
