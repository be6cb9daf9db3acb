"""``python -m macs study entropy``: does the entropy weight find the objects? AUROC against the scenes' object masks.

The held-out scenes are drawn again from their seeds, so it is known which patches show an object and which show
background. 0.5 is chance; below it, high entropy marks the objects and MACS keeps the background.
"""

from __future__ import annotations

import argparse

import numpy as np

from macs.demo.questions import KIND_OF_FAMILY
from macs.demo.scenes import draw_scene
from macs.eval.asking import Asked, add_model_flags, finish, held_out, loaded_model, prefills


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    add_model_flags(parser, 60)


def main(args: argparse.Namespace) -> int:
    """Print the mean AUROC over images for each source of entropy, then one JSON line."""
    loaded, calibration = loaded_model(args.model)
    asked = [a for a in held_out(args.limit) if a.image is not None]
    found: dict[str, list[float]] = {}
    for question, trace in prefills(loaded, calibration, asked):
        mask_V = object_mask(question, trace.grids[0])
        sources = {"embedding": trace.entropy_embedding_T} | {f"layer {x.layer}": x.entropy_T for x in trace.layers}
        for name, entropy_T in sources.items():
            found.setdefault(name, []).append(auroc(-entropy_T[trace.tokens.visual_T], mask_V))
    first = f"layer {min(int(name.split()[1]) for name in found if name != 'embedding')}"
    print('AUROC of w against object patches, mean over images (the source "first" is the hidden state of the first layer below)')
    print(f"{'hidden state':<14}{'AUROC':>7}   95 % interval of the mean")
    result = {}
    for name, values in found.items():
        known = np.array([v for v in values if not np.isnan(v)])
        mean, half = known.mean(), 1.96 * known.std() / np.sqrt(len(known))
        result[name] = {"auroc": round(float(mean), 4), "low": round(float(mean - half), 4), "high": round(float(mean + half), 4), "images": len(known)}
        print(f"{name:<14}{mean:>7.3f}   {mean - half:.3f} – {mean + half:.3f}")
    return finish({"first": first, "sources": result}, args.json)


def object_mask(question: Asked, grid: tuple[int, int]) -> np.ndarray:
    """Return for each visual token, row by row, whether it shows an object, on the grid that the model saw."""
    return draw_scene(question.seed, KIND_OF_FAMILY[question.family], "full").mask_on(grid).ravel()


def auroc(score_V: np.ndarray, positive_V: np.ndarray) -> float:
    """Return the chance that a positive scores above a negative, ties counting half; NaN if either kind is missing."""
    positives, negatives = int(positive_V.sum()), int((~positive_V).sum())
    if not positives or not negatives:
        return float("nan")
    _, place_V, count_U = np.unique(score_V, return_inverse=True, return_counts=True)
    rank_U = np.cumsum(count_U) - (count_U - 1) / 2  # mean rank of equal scores
    return float((rank_U[place_V][positive_V].sum() - positives * (positives + 1) / 2) / (positives * negatives))
