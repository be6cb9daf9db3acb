"""A row of a table: one policy's shares of right answers with intervals, beside what it executed, dropped and moved."""

from __future__ import annotations

import csv
import json
from dataclasses import fields
from pathlib import Path
from typing import Any, Mapping, Sequence

from macs.config import Policy
from macs.demo.evaluate import interval
from macs.eval.cells import Bench, Loads, Outcome
from macs.eval.statistics import compared

PRESET_FIELDS = ("load", "capacity", "overflow", "priority", "entropy_order", "gamma", "seed")


def merged(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the mean of the same cell under several seeds: scores question by question, loads summed."""
    first = outcomes[0]
    scores = tuple(sum(column) / len(outcomes) for column in zip(*(o.scores for o in outcomes), strict=True))
    loads = Loads(*(sum(getattr(o.loads, f.name) for o in outcomes) for f in fields(Loads)))
    return Outcome(scores, loads, first.ep_size, first.num_experts)


def row(
    label: str, policy: Policy, outcome: Outcome, vanilla: Outcome, tasks: Sequence[str], *, against: Mapping[str, Outcome] | None = None, **facts: Any
) -> dict[str, Any]:
    """Return a row as plain JSON values; ``tasks`` names each question's task, ``against`` more outcomes to compare with."""
    families = {task: [s for s, t in zip(outcome.scores, tasks, strict=True) if t == task] for task in dict.fromkeys(tasks)}
    return {
        "label": label,
        "policy": policy.preset,
        "plain": not changed(policy) and policy.preset != "custom" and "margin" not in facts,
        "gamma": policy.gamma,
        "settings": changed(policy),
        "ep_size": outcome.ep_size,
        "questions": len(outcome.scores),
        **summary(families),
        **_rounded(compared(outcome.scores, vanilla.scores)),
        "against": {name: _rounded(compared(outcome.scores, other.scores)) for name, other in (against or {}).items()},
        "straggler": round(outcome.straggler, 4),
        "expert_straggler": round(outcome.expert_straggler, 4),
        "dropped": round(outcome.dropped, 4),
        "rerouted": round(outcome.rerouted, 4),
        **facts,
    }


def _rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: [round(x, 4) for x in v] if isinstance(v, list) else round(v, 4) for name, v in values.items()}


def changed(policy: Policy) -> dict[str, Any]:
    """Return the fields that differ from the policy's preset, γ aside."""
    default = Policy()
    named = policy.preset != "custom"
    names = [f.name for f in fields(Policy) if not (f.name == "gamma" or (named and f.name in PRESET_FIELDS))]
    return {name: getattr(policy, name) for name in names if getattr(policy, name) != getattr(default, name)}


def summary(families: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Return the shares of right answers over all and per family, and their Wilson 95 % intervals."""
    rows = dict(families) | {"overall": [x for family in families.values() for x in family]}
    share = {family: round(sum(x) / len(x), 4) for family, x in rows.items()}
    intervals = {family: [round(bound, 4) for bound in interval(sum(x), len(x))] for family, x in rows.items()}
    return {"overall": share.pop("overall"), "families": share, "intervals": intervals}


def outcome_row(bench: Bench, label: str, policy: Policy, ep_size: int, vanilla: Outcome, **facts: Any) -> dict[str, Any]:
    """Return the row of one measured cell."""
    return row(label, policy, bench.cell(policy, ep_size), vanilla, [q.task for q in bench.questions], **facts)


def text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as a table to read."""
    rows = [{**r, "label": f"{r['group']}, {r['label']}"} if r.get("group") else r for r in rows]
    width = max(len(r["label"]) for r in rows)
    head = f"{'':<{width}} {'γ':>5} {'right':>6}  {'95 % interval':<13} {'of vanilla':>10}  {'paired 95 %':<14} {'rank':>5} {'expert':>6} {'dropped':>7} {'moved':>6}"
    lines = [head]
    for r in rows:
        (low, high), (rel_low, rel_high) = r["intervals"]["overall"], r["relative_interval"]
        lines.append(
            f"{r['label']:<{width}} {'–' if r['policy'] == 'vanilla' else format(r['gamma'], '.2f'):>5} {r['overall']:>6.1%}  {low:.1%} – {high:.1%} {r['relative']:>10.1%}  "
            f"{rel_low:.1%} – {rel_high:.1%} {r['straggler']:>6.2f} {r['expert_straggler']:>6.2f} {r['dropped']:>7.1%} {r['rerouted']:>6.1%}"
        )
    return "\n".join([*lines, "rank, expert: fullest one's tokens ÷ vanilla's mean (straggler factor), over all prefills"])


def families_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the shares per family as a table to read."""
    names = list(rows[0]["families"])
    width = max(len(r["label"]) for r in rows)
    lines = [f"{'':<{width}} " + " ".join(f"{name:>{max(len(name), 6)}}" for name in names)]
    lines += [f"{r['label']:<{width}} " + " ".join(f"{r['families'][n]:>{max(len(n), 6)}.1%}" for n in names) for r in rows]
    return "\n".join(lines)


def write_csv(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write rows flat, one column a figure."""
    flat = [_flat(r) for r in rows]
    columns = list(dict.fromkeys(name for r in flat for name in r))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(flat)


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name == "settings":
            found[prefix + name] = json.dumps(value) if value else ""
        elif isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}.")
        elif isinstance(value, (list, tuple)) and len(value) == 2:
            found |= {f"{prefix}{name}.low": value[0], f"{prefix}{name}.high": value[1]}
        else:
            found[prefix + name] = value
    return found
