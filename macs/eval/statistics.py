"""How sure a difference is: paired bootstrap over questions, the same resamples for both sides."""

from __future__ import annotations

from functools import lru_cache
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
    count_RQ = _counts(len(a), seed)
    mean_R, reference_R = count_RQ @ a / len(a), count_RQ @ b / len(b)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio_R = np.where(reference_R > 0, mean_R / reference_R, np.nan)
    return {
        "relative": float(a.mean() / b.mean()) if b.any() else float("nan"),
        "relative_interval": _interval(ratio_R),
        "difference": float(a.mean() - b.mean()),
        "difference_interval": _interval(mean_R - reference_R),
    }


@lru_cache(maxsize=2)
def _counts(questions: int, seed: int) -> np.ndarray:
    """Return how often each resample holds each question: drawn once for all rows of a table."""
    return np.random.default_rng(seed).multinomial(questions, np.full(questions, 1 / questions), RESAMPLES).astype(float)


def _interval(values: np.ndarray) -> list[float]:
    return [float(bound) for bound in np.nanpercentile(values, (2.5, 97.5))] if not np.isnan(values).all() else [float("nan")] * 2
