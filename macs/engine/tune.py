"""Which policy changes the answers least at a wanted straggler factor, on given requests: runs, not predictions."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Callable, Iterable, Sequence

import numpy as np

from macs.config import NAMED, Policy, preset
from macs.engine.base import Engine, Hooks, Progress, Request, Run
from macs.trace import Trace

STARTS = ("token_drop", "expanded_drop", "macs_no_reroute", "macs")
AXES: dict[str, tuple] = {  # tried in this order, each kept if the answers change less
    "overflow": ("drop", "reroute"),
    "priority": ("score", "weighted_score", "weight"),
    "entropy_source": ("first", "embedding", "layer"),
    "delta": (0.5, 1.0, 2.0, 4.0),
    "capacity": ("static", "modality"),
    "rho": (0.25, 0.5, 1.0),
    "min_affinity": (0.0, 0.1, 0.25),
}
MOST = 1 + len(STARTS) + sum(map(len, AXES.values()))  # vanilla, and the policies asked for
CLOSE = 0.01  # how far above the target a straggler factor may be, relative
GAMMA = (0.01, 64.0)
SEARCHED = 8  # recorded runs of the first guess at γ


@dataclass(frozen=True)
class Choice:
    """One policy as it ran on every request."""

    policy: Policy
    straggler: float  # mean over requests
    kl: float  # mean KL of the next token from vanilla's along its answers, nats
    changed: float  # share of requests whose answer is not vanilla's


def tune(
    engine: Engine,
    requests: Sequence[Request],
    target: float,
    *,
    starts: Sequence[str] = STARTS,
    ep_size: int | None = None,
    gammas: tuple[float, float] = GAMMA,
    hooks: Hooks = Hooks(),
    found: Callable[[Choice], None] = lambda _: None,
) -> list[Choice]:
    """Return every policy that was tried, the one with the least KL at straggler factor ``target`` first.

    The best of ``starts`` is improved one axis after another; γ is set anew for each, inside ``gammas``. ``found`` hears
    of each policy as it is measured. Raises ValueError on no request, on a target that vanilla meets or no policy does,
    or on bad input, and Stopped.
    """
    if not requests:
        raise ValueError("There is no request to choose by; give one prompt at least.")
    if not (isinstance(target, (int, float)) and math.isfinite(target) and 0 < target <= 1000):
        raise ValueError(f"target-straggler is {target!r}; use a number above 0, such as 1.25.")
    search = _Search(engine, requests, float(target), ep_size, gammas, hooks, found)
    for name in starts:
        search.best(preset(name))
    if not search.tried:
        raise ValueError(f"No policy meets a straggler factor of {target:.2f} on these requests; use a higher one.")
    for axis, values in AXES.items():
        for value in values:
            start = search.tried[0].policy
            if _matters(start, axis):
                search.best(start.with_(**{axis: value}))
    return search.tried


def _matters(policy: Policy, axis: str) -> bool:
    """Return whether another value of ``axis`` can change a decision of ``policy``."""
    needs = {
        "entropy_source": policy.load == "entropy",
        "delta": policy.load == "entropy",
        "overflow": policy.overflow in AXES["overflow"],
        "min_affinity": policy.overflow == "reroute",
        "rho": policy.capacity == "modality",
    }
    return needs.get(axis, True)


class _Search:
    """The runs so far; ``tried`` has the best first."""

    def __init__(self, engine: Engine, requests, target: float, ep_size, gammas, hooks: Hooks, found) -> None:
        self.tried: list[Choice] = []
        self._asked, self._gammas = 0, gammas
        self._engine, self._requests, self._target, self._hooks, self._found = engine, requests, target, hooks, found
        self._ep_size = engine.info.ep_size if ep_size is None else ep_size
        self._vanilla = [self._run(request, preset("vanilla")) for request in requests]
        fastest = float(np.mean([run.trace.straggler() for run in self._vanilla]))
        if fastest <= target * (1 + CLOSE):
            raise ValueError(f"Vanilla's straggler factor is {fastest:.2f} on these requests, which meets {target:g}: no policy is needed.")

    def best(self, policy: Policy) -> None:
        """Run ``policy`` at the γ that meets the target, unless it was tried."""
        policy, self._asked = _plain(policy), self._asked + 1
        if any(_plain(choice.policy) == policy for choice in self.tried):
            return
        gamma = self._first_guess(policy)
        choice = self._measured(policy.with_(gamma=gamma))
        for _ in range(3):
            off = choice.straggler / self._target
            if 1 - CLOSE <= off <= 1 + CLOSE:
                break
            gamma = min(max(gamma / off, GAMMA[0]), GAMMA[1])
            choice = self._measured(policy.with_(gamma=gamma))
        low, high = self._gammas
        if choice.straggler > self._target * (1 + CLOSE) or not low <= choice.policy.gamma <= high:
            return  # one pair an expert is slower than that, or γ does not converge, or it is out of the caller's reach
        self.tried = sorted([*self.tried, choice], key=lambda c: c.kl)
        self._found(choice)

    def _first_guess(self, policy: Policy) -> float:
        """Return γ from the recorded scores of some runs, by bisection in log γ."""
        traces = [run.trace for run in self._vanilla[:SEARCHED]]
        low, high = map(math.log, GAMMA)
        while high - low > CLOSE / 2:
            middle = (low + high) / 2
            below = _straggler(t.reschedule(policy.with_(gamma=math.exp(middle)), ep_size=self._ep_size) for t in traces) < self._target
            low, high = (middle, high) if below else (low, middle)
        return math.exp(low)

    def _measured(self, policy: Policy) -> Choice:
        policy = policy.with_(gamma=float(f"{policy.gamma:.3g}"))
        runs = [self._run(request, policy, vanilla) for request, vanilla in zip(self._requests, self._vanilla)]
        changed = [run.trace.answer != vanilla.trace.answer for run, vanilla in zip(runs, self._vanilla)]
        return Choice(policy, _straggler(run.trace for run in runs), float(np.mean([run.trace.kl for run in runs])), float(np.mean(changed)))

    def _run(self, request: Request, policy: Policy, reference: Run | None = None) -> Run:
        def report(step: Progress) -> None:
            self._hooks.progress(replace(step, policy_index=self._asked, policies=MOST))

        return self._engine.run(request, policy, ep_size=self._ep_size, reference=reference, hooks=Hooks(report, self._hooks.stop))


def _plain(policy: Policy) -> Policy:
    """Return the policy at γ = 1 with fields that change nothing at their defaults, so that equals are equal."""
    default = Policy()
    idle = [axis for axis in AXES if axis != "overflow" and not _matters(policy, axis)]
    priority = "score" if policy.load == "tokens" and policy.priority == "weighted_score" else policy.priority
    return policy.with_(gamma=1.0, priority=priority, **{axis: getattr(default, axis) for axis in idle})


def _straggler(traces: Iterable[Trace]) -> float:
    return float(np.mean([trace.straggler() for trace in traces]))


def snippet(policy: Policy, ep_size: int) -> str:
    """Return the line of Python that runs a model under ``policy``."""
    base = NAMED.get(policy.preset, {})
    default = Policy(**base)
    changed = {name: value for name, value in policy.to_dict().items() if value != getattr(default, name)}
    fields = "".join(f", {name}={value!r}" for name, value in changed.items())
    name = policy.preset if base else "macs"
    return f'with macs.apply(model, policy="{name}", ep_size={ep_size}, processor=processor, inputs=batch{fields}) as run:'
