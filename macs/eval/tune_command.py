"""``python -m macs tune``: the policy that changes answers least at a wanted straggler factor, on your own inputs."""

from __future__ import annotations

import argparse
import json
from contextlib import closing
from pathlib import Path

from macs.config import NAMED
from macs.engine.base import DEMO_MODEL, Request
from macs.engine.start import add_flags, chosen, start
from macs.engine.tune import STARTS, Choice, snippet, tune
from macs.eval.rows import changed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument("--model", default=str(DEMO_MODEL), help="folder or hub id (default: the embedded model)")
    parser.add_argument("--target-straggler", type=float, required=True, help="fullest rank's tokens ÷ vanilla's mean, such as 1.25")
    parser.add_argument("--tasks", nargs="+", default=["embedded:1"], help="a folder with questions.jsonl (answers are not needed), or as study quality")
    parser.add_argument("--limit", type=int, default=6, help="requests per task")
    parser.add_argument("--start", nargs="+", choices=list(NAMED), default=list(STARTS), help="policies to start from")
    parser.add_argument("--ep-size", type=int, help="ranks over which the experts are placed")
    parser.add_argument("--max-new-tokens", type=int, default=24)
    add_flags(parser)
    parser.add_argument("--json", type=Path, help="write the policy and all that was tried to this file")


def main(args: argparse.Namespace) -> int:
    """Print each policy as it is measured, then the best and the Python that runs it; raises ValueError on bad input."""
    from macs.eval.machine import environment
    from macs.eval.tasks import read_tasks

    questions = read_tasks(args.tasks, args.limit)
    requests = [Request(q.prompt, q.picture(), args.max_new_tokens) for q in questions]
    with closing(start(args.model, ep_size=args.ep_size, **chosen(args))) as engine:
        ep_size = args.ep_size or engine.info.ep_size
        print(f"{len(requests)} requests, {ep_size} ranks; straggler, KL from vanilla's next tokens in nats, and answers changed are of runs")
        print(f"{'policy':<18} {'γ':>6} {'straggler':>9} {'KL':>8} {'changed':>7}  settings")
        tried = tune(engine, requests, args.target_straggler, starts=args.start, ep_size=ep_size, found=lambda choice: print(_line(choice), flush=True))
    best = tried[0]
    print(f"\nleast change\n{_line(best)}\n\n{snippet(best.policy, ep_size)}")
    facts = {"requests": len(requests), "tasks": args.tasks, "target": args.target_straggler, "ep_size": ep_size}
    found = {"policy": best.policy.to_dict(), **facts, **_figures(best), "tried": [{"policy": c.policy.to_dict(), **_figures(c)} for c in tried]}
    if args.json:
        args.json.write_text(json.dumps({**environment("cpu" if engine.info.device == "cpu" else "cuda"), **found}, indent=1) + "\n")
    print(json.dumps({name: value for name, value in found.items() if name != "tried"}))
    return 0


def _figures(choice: Choice) -> dict[str, float]:
    return {"straggler": round(choice.straggler, 4), "kl": round(choice.kl, 6), "changed": round(choice.changed, 4)}


def _line(choice: Choice) -> str:
    settings = ", ".join(f"{name} {value}" for name, value in changed(choice.policy).items())
    return f"{choice.policy.preset:<18} {choice.policy.gamma:>6.3g} {choice.straggler:>9.3f} {choice.kl:>8.4f} {choice.changed:>7.1%}  {settings}"
