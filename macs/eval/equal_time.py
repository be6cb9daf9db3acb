"""Which capacity factor gives a policy a wanted straggler factor: measured on prefills, not read from recorded scores."""

from __future__ import annotations

import math

from macs.config import Policy
from macs.eval.cells import Bench

SAMPLE = 12  # batches of the search
CLOSE = 0.003  # relative; a sample of the batches is not closer to all of them
LOWEST, HIGHEST = 0.01, 64.0  # γ below which one pair is left to each expert, and above which no expert is cut
STEPS = 12


def gamma_for(bench: Bench, policy: Policy, ep_size: int, target: float) -> float:
    """Return γ, to three digits, at which ``policy`` makes the fullest rank ``target`` times vanilla's mean.

    Secant steps in log γ and log straggler, kept inside the bracket known so far: the factor never falls as γ rises.
    Raises ValueError if no γ gives the target, because vanilla itself is faster or one pair an expert is slower.
    """
    every = max(len(bench.batches) // SAMPLE, 1)

    def off(gamma: float) -> float:
        return math.log(bench.loads(policy.with_(gamma=gamma), ep_size, every).straggler / target)

    low, high = math.log(LOWEST), math.log(HIGHEST)
    at, slope, before = math.log(target), 1.0, None
    for _ in range(STEPS):
        found = off(math.exp(at))
        if abs(found) < CLOSE or high - low < CLOSE / 10:
            break
        low, high = (at, high) if found < 0 else (low, at)
        if before is not None and abs(at - before[0]) > 1e-9:
            slope = min(max((found - before[1]) / (at - before[0]), 0.1), 4.0)  # flat where little is cut
        before, at = (at, found), at - found / slope
        if not low < at < high:
            at = (low + high) / 2
    if abs(found) > 0.05:
        raise ValueError(f"No capacity factor makes {policy.preset} as slow as {target:g}: the nearest straggler factor is {target * math.exp(found):.2f}.")
    return float(f"{math.exp(before[0] if before and abs(before[1]) < abs(found) else at):.3g}")
