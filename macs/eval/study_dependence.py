"""``python -m macs study dependence``: do the experts matter? Accuracy with a random share of all pairs dropped."""

from __future__ import annotations

import argparse

import numpy as np

from macs.eval.asking import add_model_flags, finish, held_out, interval, loaded_model, right_by_family

SHARES = (0.1, 0.25, 0.5, 0.75, 1.0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    add_model_flags(parser, 40)
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES, help="shares of pairs to drop, 0 to 1")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=20)


def main(args: argparse.Namespace) -> int:
    """Print accuracy at each share, mean over seeds, then one JSON line."""
    if args.seeds < 1:
        raise ValueError(f"seeds is {args.seeds}; use 1 or more.")
    asked = held_out(args.limit)
    loaded, _ = loaded_model(args.model)
    vanilla = accuracy(loaded, asked, args.batch)
    low, high = interval(round(vanilla * len(asked)), len(asked))
    print(f"{len(asked)} questions, {args.seeds} seeds; pairs dropped at random in every layer of prefill and decode")
    print(f"{'dropped':>8} {'exact match':>12} {'of vanilla':>11}  per seed\n{'0 %':>8} {vanilla:>12.1%} {1:>11.1%}  95 % interval {low:.1%} – {high:.1%}")
    result = {"vanilla": vanilla, "interval": [low, high], "questions": len(asked), "dropped": {}}
    for share in args.shares:
        found = [dropped_accuracy(loaded, asked, args.batch, share, seed) for seed in range(1 if share == 1 else args.seeds)]
        mean = float(np.mean(found))
        print(f"{share:>8.0%} {mean:>12.1%} {mean / max(vanilla, 1e-9):>11.1%}  {' '.join(f'{x:.1%}' for x in found)}", flush=True)
        result["dropped"][f"{share:g}"] = {"mean": mean, "of_vanilla": mean / max(vanilla, 1e-9), "seeds": found}
    return finish(result, args.json)


def accuracy(loaded, asked, batch: int) -> float:
    """Return the share of exactly right answers."""
    right = [x for family in right_by_family(loaded, asked, batch).values() for x in family]
    return sum(right) / len(right)


def dropped_accuracy(loaded, asked, batch: int, share: float, seed: int) -> float:
    """Return the accuracy with a random ``share`` of pairs dropped."""
    from macs.model.controls import random_drop

    with random_drop(loaded.model, share, seed):
        return accuracy(loaded, asked, batch)
