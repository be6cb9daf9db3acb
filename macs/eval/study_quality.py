"""``python -m macs study quality``: exact match on the held-out questions under each policy, per family, with intervals."""

from __future__ import annotations

import argparse
from contextlib import nullcontext

from macs.config import preset
from macs.eval.asking import FAMILIES, add_model_flags, finish, held_out, interval, loaded_model, right_by_family


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    add_model_flags(parser, None)
    parser.add_argument("--policies", nargs="+", default=["vanilla"], help="presets to compare")
    parser.add_argument("--gamma", type=float, default=1.0, help="capacity factor of every policy but vanilla")
    parser.add_argument("--ep-size", type=int, default=4, help="ranks over which the experts are placed")
    parser.add_argument("--batch", type=int, default=20, help="questions in one forward batch; capacities are the batch's")


def main(args: argparse.Namespace) -> int:
    """Print a table per policy, then one JSON line ``{policy: {"overall", "families", "intervals"}}``."""
    policies = {name: preset(name, gamma=args.gamma) for name in args.policies}
    asked = held_out(args.limit)
    loaded, calibration = loaded_model(args.model)
    result = {}
    for name, policy in policies.items():
        from macs.model import apply

        around = nullcontext() if name == "vanilla" else apply(loaded.model, policy, ep_size=args.ep_size, modality=calibration)
        with around:
            right = right_by_family(loaded, asked, args.batch)
        result[name] = summary(right)
        print(table(name, right))
    return finish(result, args.json)


def summary(right: dict[str, list[bool]]) -> dict:
    """Return the shares of right answers and their Wilson 95 % intervals."""
    rows = right | {"overall": [x for family in right.values() for x in family]}
    share = {family: round(sum(x) / len(x), 4) for family, x in rows.items()}
    intervals = {family: [round(bound, 4) for bound in interval(sum(x), len(x))] for family, x in rows.items()}
    return {"overall": share.pop("overall"), "families": share, "intervals": intervals}


def table(name: str, right: dict[str, list[bool]]) -> str:
    """Return one line per family and one for all as text."""
    facts = summary(right)
    lines = [f"{name:<14}{'exact match':>12}   95 % interval"]
    for family in (*(f for f in FAMILIES if f in right), "overall"):
        share = facts["overall"] if family == "overall" else facts["families"][family]
        low, high = facts["intervals"][family]
        lines.append(f"  {family:<12}{share:>12.1%}   {low:.1%} – {high:.1%}")
    return "\n".join(lines)
