"""``python -m macs study quality``: how right the answers are under each policy and capacity factor, with intervals."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from macs.config import CHOICES, RANGES, Policy, preset
from macs.eval.bench import add_bench_flags, document, open_bench
from macs.eval.cells import Bench
from macs.eval.rows import families_text, outcome_row, text, write_csv


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    add_bench_flags(parser)
    parser.add_argument("--policies", nargs="+", default=["vanilla"], help="presets and controls to compare")
    parser.add_argument("--gammas", "--gamma", type=float, nargs="+", default=[1.0], help="capacity factors of every policy but vanilla")
    parser.add_argument("--set", nargs="+", default=[], metavar="FIELD=VALUE", help="other fields of the policies, such as delta=2")
    parser.add_argument("--csv", type=Path, help="also write the rows to this file")
    parser.add_argument("--json", type=Path, help="also write the rows to this file, with command, date, machine and model")


def main(args: argparse.Namespace) -> int:
    """Print the tables, then one JSON line ``{policy: {"overall", "families", "intervals", …}}``."""
    import json

    fields = policy_fields(args.set)
    policies = labelled(args.policies, args.gammas, fields)  # before anything is loaded
    bench = open_bench(args)
    rows = quality_rows(bench, policies, args.ep_size)
    print(text(rows), families_text(rows), sep="\n\n")
    if args.csv:
        write_csv(rows, args.csv)
    if args.json:
        args.json.write_text(json.dumps(document(bench, args, rows), indent=1) + "\n")
    print(json.dumps({r["label"]: r for r in rows}))
    return 0


def labelled(names: list[str], gammas: list[float], fields: dict[str, Any]) -> dict[str, Policy]:
    """Return each policy at each capacity factor under a name that tells them apart; vanilla has none."""
    found = {}
    for name in names:
        for gamma in gammas[:1] if name == "vanilla" else gammas:
            label = name if name == "vanilla" or len(gammas) == 1 else f"{name} γ {gamma:g}"
            found[label] = preset(name, gamma=gamma, **fields)
    return found


def policy_fields(given: list[str]) -> dict[str, Any]:
    """Return ``FIELD=VALUE`` texts as fields of a policy; raises ValueError on one that is none."""
    found: dict[str, Any] = {}
    for item in given:
        name, equal, value = item.partition("=")
        if not equal or name not in {**RANGES, **CHOICES, "seed": None}:
            raise ValueError(f"set is {item!r}; write FIELD=VALUE with one of {', '.join([*RANGES, *CHOICES, 'seed'])}.")
        try:
            found[name] = int(value) if name == "seed" else float(value) if name in RANGES else value
        except ValueError:
            raise ValueError(f"{name} is {value!r}; use a number.") from None
    return found


def quality_rows(bench: Bench, policies: dict[str, Policy], ep_size: int) -> list[dict[str, Any]]:
    """Return one row for each policy, compared with vanilla on the same questions."""
    vanilla = bench.cell(preset("vanilla"), ep_size)
    return [outcome_row(bench, label, policy, ep_size, vanilla) for label, policy in policies.items()]
