"""``python -m macs run``: one request, one policy, the answer and a table of every layer."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from macs.config import CHOICES, NAMED, RANGES, Policy, preset
from macs.engine.base import DEMO_MODEL, Request
from macs.engine.start import add_flags, chosen, start
from macs.trace import LayerTrace, Trace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags; every field of a policy is one."""
    parser.add_argument("--prompt", required=True, help="the question, plain text")
    parser.add_argument("--image", nargs="+", default=[], metavar="FILE", help="picture files; without them the run is text only")
    parser.add_argument("--video", metavar="FILE", help="an animated GIF, WebP or PNG, whose frames the model sees as a video")
    parser.add_argument("--model", default=str(DEMO_MODEL), help="folder or hub id (default: the embedded model)")
    parser.add_argument("--policy", default="macs", help=f"one of {', '.join(NAMED)}")
    for name in RANGES:
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, help="see README, 'What every number means'")
    for name, allowed in CHOICES.items():
        parser.add_argument(f"--{name.replace('_', '-')}", help=f"one of {', '.join(allowed)}")
    parser.add_argument("--seed", type=int, help="of what the controls leave to chance")
    parser.add_argument("--ep-size", type=int, help="ranks over which the experts are placed")
    add_flags(parser)
    parser.add_argument("--max-new-tokens", type=int, default=24)
    parser.add_argument("--out", help="write the trace to this file")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of the table")


def main(args: argparse.Namespace) -> int:
    """Run and print; raises ValueError with one sentence on bad input."""
    policy = policy_from_flags(args)
    if args.max_new_tokens < 1:
        raise ValueError(f"max-new-tokens is {args.max_new_tokens}; use 1 or more.")
    from macs.trace_file import save_trace  # after the checks: torch takes seconds to import

    request = _request(args)
    with closing(start(args.model, ep_size=args.ep_size, **chosen(args))) as engine:
        trace = engine.run(request, policy).trace
    if args.out:
        save_trace(trace, args.out)
    print(json.dumps(document(trace), ensure_ascii=False) if args.json else table(trace))
    return 0


def _request(args: argparse.Namespace) -> Request:
    """Return what the flags ask, with what was done to a file said on stderr; raises ValueError on one that cannot be used."""
    from macs.engine.intake import MAX_PICTURES, open_frames, open_image

    if len(args.image) > MAX_PICTURES:
        raise ValueError(f"There are {len(args.image)} pictures; at most {MAX_PICTURES} run here.")
    pictures = [open_image(file) for file in args.image]
    clip = open_frames(args.video) if args.video else None
    for opened in (*pictures, *([clip] if clip else [])):
        for notice in opened.notices:
            print(notice, file=sys.stderr)
    images = [opened.image for opened in pictures]
    video = {"frames": clip.frames, "fps": clip.fps} if clip else {}
    return Request(args.prompt, images[0] if images else None, args.max_new_tokens, more=tuple(images[1:]), **video)


def policy_from_flags(args: argparse.Namespace) -> Policy:
    """Return the policy that the flags describe; raises ValueError on a value it cannot take."""
    given = {name: getattr(args, name) for name in (*RANGES, *CHOICES, "seed") if getattr(args, name, None) is not None}
    return preset(args.policy, **given)


def document(trace: Trace) -> dict[str, Any]:
    """Return the run as plain JSON values: answer, seconds, and per layer the counts of each expert."""
    return {
        "model": trace.about["model"],
        "policy": {"preset": trace.policy.preset} | trace.policy.to_dict(),
        "ep_size": trace.ep_size,
        "answer": trace.answer,
        "seconds": dict(trace.seconds),
        "times": trace.about.get("times"),
        "device": trace.about.get("device"),
        "ranks": trace.about.get("ranks", []),
        "layers": [_layer(layer, trace.ep_size) for layer in trace.layers],
    }


def _layer(layer: LayerTrace, ep_size: int) -> dict[str, Any]:
    per_expert = ("tokens_before", "tokens_after", "effective_before", "effective_after", "capacity")
    counts = {"layer": layer.layer, "kept": layer.kept, "rerouted": layer.rerouted, "dropped": layer.dropped}
    counts |= {"expanded": layer.expanded, "straggler": layer.straggler(ep_size)}
    counts |= {"seconds": {name: values.tolist() for name, values in layer.seconds.items()}}
    return counts | {name: getattr(layer.decision, f"{name}_N").tolist() for name in per_expert}


def table(trace: Trace) -> str:
    """Return the answer and one line per layer as text."""
    head = f"{'layer':>5} {'pairs':>6} {'kept':>6} {'rerouted':>8} {'dropped':>7} {'straggler':>9}  tokens per rank"
    lines = [f"answer: {trace.answer}", f"policy: {trace.policy.preset}, γ {trace.policy.gamma:g}, δ {trace.policy.delta:g}, {trace.ep_size} ranks", "", head]
    for layer in trace.layers:
        ranks = " ".join(str(int(n)) for n in layer.rank_tokens(trace.ep_size))
        lines.append(f"{layer.layer:>5} {layer.pairs:>6} {layer.kept:>6} {layer.rerouted:>8} {layer.dropped:>7} {layer.straggler(trace.ep_size):>9.2f}  {ranks}")
    lines += ["", "straggler: max over ranks of tokens executed ÷ mean over ranks of tokens vanilla routes"]
    lines += rank_lines(trace) if "ranks" in trace.about else []
    return "\n".join([*lines, f"seconds ({trace.about.get('times', 'not measured')}): {', '.join(f'{k} {v:.3f}' for k, v in trace.seconds.items())}"])


def rank_lines(trace: Trace) -> list[str]:
    """Return what each rank did in the prefill, summed over layers, and which was slowest, as lines of text."""
    parts = ("experts", "schedule", "communication", "waiting")
    lines = ["", f"{'rank':>4} {'tokens':>8} {'peak MiB':>9} " + " ".join(f"{part + ' ms':>16}" for part in parts)]
    sums = {part: sum(layer.seconds[part] for layer in trace.layers) for part in parts}
    tokens_G = sum(layer.rank_tokens(trace.ep_size) for layer in trace.layers)
    for rank, about in enumerate(trace.about["ranks"]):
        peak = about["peak_bytes"].get("device", about["peak_bytes"]["host"]) / 2**20
        lines.append(f"{rank:>4} {int(tokens_G[rank]):>8} {peak:>9.0f} " + " ".join(f"{sums[part][rank] * 1e3:>16.2f}" for part in parts))
    slowest = int(sums["experts"].argmax())
    return [*lines, f"slowest: rank {slowest}, {sums['experts'][slowest] * 1e3:.2f} ms of experts ({trace.about['device']}, {trace.about['exchange']}, measured)"]
