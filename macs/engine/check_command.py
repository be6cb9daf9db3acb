"""``python -m macs check``: what a model is and what would run of it here, before any weight is read or fetched."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from macs.engine.base import DEMO_MODEL


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument("--model", default=str(DEMO_MODEL), help="folder or hub id (default: the embedded model); its config is enough")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8], metavar="G", help="numbers of ranks to look at (default: 2 4 8)")
    parser.add_argument("--trust-remote-code", action="store_true", help="run Python code that comes with the model; only for a model you trust")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of the report")


def main(args: argparse.Namespace) -> int:
    """Print the report; raises ValueError with one sentence if the model cannot be used."""
    for ranks in args.ranks:
        if ranks < 1:
            raise ValueError(f"ranks is {ranks}; use numbers from 1.")
    from macs.model.preflight import preflight

    found = preflight(args.model, tuple(args.ranks), args.trust_remote_code)
    print(json.dumps(asdict(found) | {"fits": found.fits}, ensure_ascii=False) if args.json else report(found))
    return 0


def report(found) -> str:
    """Return a preflight as text."""
    model, router, experts = found.classes
    billions = f"{count(found.parameters)}, of them {count(found.expert_parameters)} in routed experts; {count(found.active_parameters)} active for a token"
    lines = [
        ("model", f"{found.name} ({found.family}{'' if found.known else ', not listed here: found by the common calls'})"),
        ("classes", f"{model}; {router}, {experts}"),
        ("router", found.router),
        ("layers", f"{found.layers[0]} with experts, of {found.layers[1]}; {found.experts} experts, top-{found.top_k}"),
        ("parameters", billions),
        ("weights", f"{found.dtype}{f', quantised by {found.quantised}' if found.quantised else ''}; {files(found)}"),
        ("here", ", ".join(f"{name} {size(memory)}" for name, memory in found.gpus) or f"no GPU; {size(found.host_bytes)} of memory"),
        ("one process", f"{'not known without the files' if found.process_bytes is None else size(found.process_bytes)}{verdict(found, 1)}"),
    ]
    for ranks in sorted(found.rank_bytes | found.refused):
        why = found.refused.get(ranks)
        lines.append((f"{ranks} ranks", f"no: {why}" if why else f"{size(found.rank_bytes[ranks])} each{verdict(found, ranks)}"))
    lines += list(found.supports.items())
    text = "\n".join(f"{name:<12} {value}" for name, value in lines)
    return f"{text}\n\nSizes are of the weights alone; cache and activations come on top. Ranks hold all but the routed experts whole."


def verdict(found, processes: int) -> str:
    """Return whether the weights fit on this machine, as the end of a line."""
    if processes not in found.fits:
        return ""
    where = (f"on {processes} GPU{'s' if processes > 1 else ''}" if found.gpus else "all together in memory") + " here"
    return f": {'fits' if found.fits[processes] else 'does not fit'} {where}"


def files(found) -> str:
    """Return what is known of the weight files."""
    if found.files is None:
        return "no weight files: the config alone was read"
    said = "size not said" if found.files.bytes is None else size(found.files.bytes)
    lacking = f", {len(found.files.missing)} of them missing ({found.files.missing[0]}, ...)" if found.files.missing else ""
    return f"{found.files.count} file{'s' if found.files.count > 1 else ''}, {said}{lacking}"


def count(number: int) -> str:
    """Return a number of parameters as people say it."""
    return f"{number / 1e9:.2f} B" if number >= 1e8 else f"{number / 1e6:.2f} M"


def size(number: int) -> str:
    """Return bytes in decimal units, as weights and memory are sold."""
    return f"{number / 1e9:.1f} GB" if number >= 1e8 else f"{number / 1e6:.2f} MB"
