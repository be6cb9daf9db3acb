"""``python -m macs study loads``: how skewed vanilla's loads are, per layer, and which experts serve which modality."""

from __future__ import annotations

import argparse

import numpy as np

from macs.eval.asking import add_model_flags, finish, held_out, loaded_model, prefills

RANKS = (2, 4, 8)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    add_model_flags(parser, 20)


def main(args: argparse.Namespace) -> int:
    """Print max ÷ mean per expert and per rank for each layer, averaged over questions, then one JSON line."""
    loaded, calibration = loaded_model(args.model)
    ranks = [g for g in RANKS if loaded.num_experts % g == 0]
    found: dict[int, list[list[float]]] = {}
    for _, trace in prefills(loaded, calibration, held_out(args.limit)):
        for layer in trace.layers:
            found.setdefault(layer.layer, []).append([layer.expert_straggler(), *(layer.straggler(g) for g in ranks)])
    print("max ÷ mean of vanilla's load in one prefill, averaged over prompts; groups by §3.3 of the paper")
    print(f"{'layer':>5} {'expert':>7} {' '.join(f'G={g:<3}' for g in ranks)} visual text shared")
    result = {}
    for layer, rows in found.items():
        expert, *by_rank = np.mean(rows, 0).round(3).tolist()
        groups = calibration[layer].tolist() if calibration else [0] * loaded.num_experts
        counts = {name: groups.count(m) for name, m in (("visual", 1), ("text", -1), ("shared", 0))}
        result[layer] = {"expert": expert, "ranks": dict(zip(map(str, ranks), by_rank)), **counts}
        print(f"{layer:>5} {expert:>7.2f} {' '.join(f'{x:<5.2f}' for x in by_rank)} {counts['visual']:>6} {counts['text']:>4} {counts['shared']:>6}")
    return finish({"prompts": len(next(iter(found.values()))), "calibrated": calibration is not None, "layers": result}, args.json)
