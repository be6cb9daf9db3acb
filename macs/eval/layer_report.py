"""How ``bench layer`` words its results."""

from __future__ import annotations

import argparse
from typing import Any

from macs.eval.shapes import Shape


def conditions(args: argparse.Namespace, *, visual_share: float, close: float) -> dict[str, Any]:
    """Return what was measured, as plain JSON values."""
    popularity = f"N(0, {args.skew:g})"
    return {
        "what": "one MoE layer, ranks in turn: schedule + slowest rank's experts; no communication, no attention; entropy weights apart",
        "ranks": args.ranks,
        "dtype": args.dtype,
        "experts": "transformers grouped_mm, random weights",
        "routing": f"logits N(0, 1) + {popularity} per expert + {popularity} per expert and modality, softmax, seed {args.seed}",
        "visual_share": visual_share,
        "statistic": "median of the rounds, after a warm-up; ratios to vanilla measured just before",
        "ranks_not_run": f"those with less than {close:.0%} of the fullest rank's tokens, which cannot be the slowest",
    }


def table(name: str, shape: Shape, layer: dict[str, Any], args: argparse.Namespace) -> str:
    """Return one shape and length as text."""
    sizes = f"hidden {shape.hidden}, intermediate {shape.intermediate}, {shape.experts} experts, top-{shape.top_k}"
    head = (f"{'policy':<16} {'gamma':>6} {'dropped':>8} {'rerouted':>8} {'straggler':>9} {'per expert':>10} "
            f"{'entropy ms':>10} {'schedule ms':>11} {'slowest ms':>10} {'rank':>4} {'÷ vanilla':>9} {'modelled':>8} {'schedule ÷ layer':>16}")  # fmt: skip
    lines = ["", f"{name}: {sizes}, T = {layer['tokens']}, {args.ranks} ranks in turn on {args.device}, {args.dtype}, {layer['rounds']} rounds", head]
    for row in layer["rows"]:
        gamma = f"{row['gamma']:.2f}" if row["gamma"] is not None else ""
        mark = f"   {row['compared_at']} at {row['macs_gamma']:g}" if row["compared_at"].startswith("straggler") else ""
        lines.append(
            f"{row['policy']:<16} {gamma:>6} {row['dropped']:>8.1%} {row['rerouted']:>8.1%} {row['straggler']:>9.2f} {row['expert_straggler']:>10.2f} "
            f"{row['weigh_seconds'] * 1e3:>10.1f} {row['schedule_seconds'] * 1e3:>11.1f} {(row['seconds'] - row['schedule_seconds']) * 1e3:>10.1f} {row['slowest_rank']:>4} "
            f"{row['time_over_vanilla']:>9.2f} {row['modelled']:>8.2f} {row['schedule_over_layer']:>16.1%}{mark}"
        )
    if layer["host_syncs_of_a_schedule"] is not None:
        lines.append(f"the host waits for the device {layer['host_syncs_of_a_schedule']} times in a schedule")
    return "\n".join(lines)
