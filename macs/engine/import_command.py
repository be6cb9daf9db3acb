"""``python -m macs import``: a routing record of vLLM or SGLang becomes a trace, with what it lacks said."""

from __future__ import annotations

import argparse
from pathlib import Path

from macs.trace import Trace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument("file", type=Path, help="the JSON response of vLLM or SGLang, or the .pt of SGLang's expert-distribution recorder")
    parser.add_argument("--out", type=Path, required=True, help="write the trace to this file (.npz)")
    parser.add_argument("--experts", type=int, metavar="N", help="experts of a layer, where the record does not say it")
    parser.add_argument("--layers", type=int, metavar="L", help="decoder layers, for SGLang's response, which does not say its shape")
    parser.add_argument("--top-k", type=int, metavar="K", help="experts of a token, for the same")
    parser.add_argument("--choice", type=int, default=0, metavar="I", help="which of several answers, from 0")
    parser.add_argument("--pass", type=int, dest="forward_pass", metavar="ID", help="which forward pass of a dump (default: the one with most tokens)")
    parser.add_argument("--ep-size", type=int, help="ranks over which the experts are placed")


def main(args: argparse.Namespace) -> int:
    """Write the trace and print its loads; raises ValueError with one sentence on bad input."""
    for name in ("experts", "layers", "top_k"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise ValueError(f"{name.replace('_', '-')} is {getattr(args, name)}; use 1 or more.")
    from macs.trace_file import save_trace
    from macs.trace_import import trace_of
    from macs.trace_records import read_record

    record = read_record(args.file, layers=args.layers, top_k=args.top_k, choice=args.choice, forward_pass=args.forward_pass)
    trace = trace_of(record, experts=args.experts, ep_size=args.ep_size, name=args.file.stem)
    save_trace(trace, args.out)
    print(report(trace))
    return 0


def report(trace: Trace) -> str:
    """Return what was imported, what it lacks, and each layer's loads as text."""
    shape = f"{int(trace.tokens.valid_T.sum())} tokens, {len(trace.layers)} layers of {trace.num_experts} experts, top-{trace.top_k}"
    lines = [f"From {trace.about['source']}: {shape}.", *trace.about["notices"]]
    lines += [f"The record holds expert ids alone. Not known: {', '.join(trace.lacks)}. Weights, maps and other policies are off.", ""]
    lines.append(f"{'layer':>5} {'pairs':>8} {'fullest expert':>14} {'÷ mean':>7} {'fullest rank':>12} {'÷ mean':>7}")
    for layer in trace.layers:
        before_N = layer.decision.tokens_before_N
        ranks = f"{int(layer.rank_tokens(trace.ep_size).max()):>12} {layer.straggler(trace.ep_size):>7.2f}"
        lines.append(f"{layer.layer:>5} {layer.pairs:>8} {int(before_N.max()):>14} {layer.expert_straggler():>7.2f} {ranks}")
    return "\n".join([*lines, "", f"Ranks: {trace.ep_size}, each with {trace.num_experts // trace.ep_size} experts by id."])
