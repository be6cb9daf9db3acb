"""How every study of answers opens its model and questions, and what it writes beside its figures."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any, Sequence

from macs.config import check_ep_size
from macs.engine.base import DEMO_MODEL
from macs.eval.cells import ANSWER_TOKENS, Bench, Store, batched
from macs.eval.machine import environment
from macs.eval.tasks import Question, read_tasks


def add_bench_flags(parser: argparse.ArgumentParser, *, tasks: Sequence[str] = ("embedded",), limit: int | None = None) -> None:
    """Declare what is asked, of which model, and where measured cells are kept."""
    parser.add_argument("--model", default=str(DEMO_MODEL), help="folder or hub id (default: the embedded model)")
    parser.add_argument("--tasks", nargs="+", default=list(tasks), help="embedded, embedded:SEED, a folder with questions.jsonl, or BENCHMARK:PATH")
    parser.add_argument("--limit", type=int, default=limit, help=f"questions per task (default: {limit or 'all'})")
    parser.add_argument("--ep-size", type=int, default=4, help="ranks over which the experts are placed")
    parser.add_argument("--batch", type=int, default=20, help="questions in one forward batch; capacities are the batch's")
    parser.add_argument("--max-new-tokens", type=int, default=ANSWER_TOKENS)
    parser.add_argument("--cells", type=Path, help="keep measured cells in this file and go on from it")
    parser.add_argument("--dtype", default="auto", help="of the weights: auto, float32, bfloat16, float16")
    parser.add_argument("--device-map", help="lay the model over devices with accelerate, such as auto")
    parser.add_argument("--trust-remote-code", action="store_true", help="run code that comes with the model")


def open_bench(args: argparse.Namespace, batches: list[list[Question]] | None = None) -> Bench:
    """Return the bench that the flags describe; raises ValueError with one sentence on what cannot be used."""
    if args.max_new_tokens < 1:
        raise ValueError(f"max-new-tokens is {args.max_new_tokens}; use 1 or more.")
    batches = batches if batches is not None else batched(read_tasks(args.tasks, args.limit), args.batch)
    if not batches:
        raise ValueError("The tasks hold no question.")
    silent = [q.prompt for questions in batches for q in questions if not q.answers]
    if silent:
        raise ValueError(f'{len(silent)} questions have no answers to score by, the first is "{silent[0][:60]}"; add "answers" to their lines.')
    import torch

    from macs.model import count_experts, load, read_calibration
    from macs.model.calibration import model_identity

    check_ep_size(args.ep_size, count_experts(args.model, args.trust_remote_code), "ep-size")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loaded = load(args.model, dtype=args.dtype, device=device, device_map=args.device_map, trust_remote_code=args.trust_remote_code)
    bench = Bench(loaded, read_calibration(loaded), batches, Store(args.cells), model_identity(loaded.folder), args.max_new_tokens)
    bench.on_batch = progress() if sys.stderr.isatty() else bench.on_batch
    return bench


def progress() -> Any:
    """Return what writes one line of progress over the last."""
    start = time.monotonic()

    def show(done: int, of: int) -> None:
        nonlocal start
        if done == 1:
            start = time.monotonic()
        left = (time.monotonic() - start) / max(done - 1, 1) * (of - done)
        print(f"\r{'█' * (30 * done // of):░<30} {done}/{of} batches, {left:.0f} s left ", end="" if done < of else "\r\033[K", file=sys.stderr, flush=True)

    return show


def document(bench: Bench, args: argparse.Namespace, rows: list[dict[str, Any]], **facts: Any) -> dict[str, Any]:
    """Return rows with what a reader needs to repeat them: command, date, machine, versions, model and questions."""
    device = bench.loaded.model.device.type
    return {
        **environment(device),
        "model": bench.loaded.name,
        "model_sha256": bench.identity,
        "calibrated": bench.modality is not None,
        "tasks": args.tasks,
        "questions_sha256": bench.asked,
        "questions": len(bench.questions),
        "batch": max(bench.sizes),
        **facts,
        "rows": rows,
    }
