"""How sure a difference is: paired bootstrap over questions, the same resamples for both sides."""

from __future__ import annotations

from typing import Sequence

import numpy as np

RESAMPLES = 10_000


def compared(scores: Sequence[float], reference: Sequence[float], *, seed: int = 0) -> dict[str, list[float] | float]:
    """Return share ÷ reference's share and share − reference's, each with its 95 % interval, of answers to the same questions.

    Raises ValueError if there are none or they differ in number. A reference that is never right has no ratio: NaN.
    """
    if len(scores) != len(reference) or not len(scores):
        raise ValueError(f"{len(scores)} answers cannot be compared with {len(reference)}; ask both the same questions.")
    a, b = np.asarray(scores, float), np.asarray(reference, float)
    count_RQ = np.random.default_rng(seed).multinomial(len(a), np.full(len(a), 1 / len(a)), RESAMPLES)
    mean_R, reference_R = count_RQ @ a / len(a), count_RQ @ b / len(b)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio_R = np.where(reference_R > 0, mean_R / reference_R, np.nan)
    return {
        "relative": float(a.mean() / b.mean()) if b.any() else float("nan"),
        "relative_interval": _interval(ratio_R),
        "difference": float(a.mean() - b.mean()),
        "difference_interval": _interval(mean_R - reference_R),
    }


def _interval(values: np.ndarray) -> list[float]:
    return [float(bound) for bound in np.nanpercentile(values, (2.5, 97.5))] if not np.isnan(values).all() else [float("nan")] * 2
