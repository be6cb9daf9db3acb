"""Which engine: one process, ranks that we start, or ranks that torchrun started."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from macs.config import checked_number
from macs.engine.base import Engine

DTYPES = ("auto", "float32", "bfloat16", "float16")
DEVICE_MAPS = ("auto", "balanced", "sequential")
FOR_RANKS = "use auto, 1, or a number that divides the model's experts"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags that choose an engine; ``chosen`` reads them."""
    parser.add_argument("--ranks", default="auto", help="processes over which the experts are split: a number, or auto (all GPUs if there are two or more, else one process)")
    add_loading_flags(parser)
    parser.add_argument("--exchange", choices=("all_reduce", "all_to_all"), default="all_reduce", help="how ranks share tokens")
    parser.add_argument("--rank-timeout", type=float, default=30.0, metavar="SECONDS", help="after which a rank that does not move is given up")


def add_loading_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags that say how one process loads a model; ``loading`` reads them."""
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda if there is one")
    parser.add_argument("--dtype", choices=DTYPES, default="auto", help="of the weights (default: as the checkpoint says)")
    parser.add_argument("--device-map", choices=DEVICE_MAPS, help="lay one process's model over all devices, as accelerate does")
    parser.add_argument("--trust-remote-code", action="store_true", help="run Python code that comes with the model; only for a model you trust")


def loading(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of ``macs.model.load`` that the flags of ``add_loading_flags`` give; raises ValueError without the device."""
    names = ("dtype", "device_map", "trust_remote_code")
    return {name: getattr(args, name) for name in names} | {"device": _device(args.device)[0]}


def chosen(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of ``start`` that the flags of ``add_flags`` give; raises ValueError on a bad timeout."""
    timeout = checked_number("rank-timeout", args.rank_timeout, 1.0, 86400.0)
    names = ("ranks", "device", "exchange", "dtype", "device_map", "trust_remote_code")
    return {name: getattr(args, name) for name in names} | {"rank_timeout": timeout}


def start(
    model: str,
    ranks: str | int = "auto",
    *,
    ep_size: int | None = None,
    dtype: str = "auto",
    device: str | None = None,
    device_map: str | None = None,
    exchange: str = "all_reduce",
    rank_timeout: float = 30.0,
    trust_remote_code: bool = False,
) -> Engine:
    """Return an engine for ``model`` on ``ranks`` processes: a number, or "auto", which takes all GPUs if there are two or more.

    In a process that torchrun started it joins that launch instead; there it returns on rank 0 alone, and on the others
    serves rank 0 and then exits. On a Space with ZeroGPU, which lends one GPU a call, ranks are placement. ``device`` is "cpu" or "cuda" (default: cuda if there is one), ``device_map`` how
    accelerate lays one process's model over devices, ``exchange`` how ranks share tokens, ``rank_timeout`` the seconds
    after which a rank that does not move is given up. ``trust_remote_code`` runs code that comes with the model.
    Raises ValueError with one sentence before anything starts.
    """
    from macs.engine.joined import launched
    from macs.engine.zero import lend, zero_gpu

    if zero_gpu() and device != "cpu":
        return lend(model, ranks, ep_size=ep_size, dtype=dtype, device_map=device_map, trust_remote_code=trust_remote_code)
    device, gpus = _device(device)
    joined = launched()
    options = {"dtype": dtype, "trust_remote_code": trust_remote_code}
    count = 1 if ranks == "auto" and device_map and not joined else _count(ranks, joined, model, gpus, trust_remote_code)
    if count == 1:
        from macs.engine.local import LocalEngine

        return LocalEngine(model, ep_size=ep_size, device=device, device_map=device_map, **options)
    if device_map:
        raise ValueError(f"device_map is {device_map!r}, but {count} ranks hold one device each; leave one of the two out.")
    if ep_size not in (None, count):
        raise ValueError(f"ep_size is {ep_size}, but the experts are split over {count} ranks; leave it out or use {count}.")
    if device == "cuda" and count > gpus and not joined:
        raise ValueError(f"{count} ranks need {count} GPUs and this machine has {gpus}; use fewer ranks, or the CPU.")
    return _split(model, count, bool(joined), device, rank_timeout, exchange=exchange, **options)


def _device(device: str | None) -> tuple[str, int]:
    """Return the kind of device and how many GPUs there are of it; raises ValueError if it is not here."""
    import torch

    gpus = 0 if device == "cpu" else torch.cuda.device_count()
    if device not in (None, "cpu", "cuda") or (device == "cuda" and not gpus):
        raise ValueError(f"device is {device!r}; use cpu{', or cuda' if gpus else ': this machine has no GPU'}.")
    return "cuda" if gpus else "cpu", gpus


def _split(model: str, count: int, joined: bool, device: str, rank_timeout: float, **options: Any) -> Engine:
    from macs.engine.ranks import RanksEngine

    if not joined:
        from macs.engine.launch import RankGroup

        return RanksEngine(model, count, lambda: RankGroup(count, device=device, timeout=rank_timeout), **options)
    from macs.engine.joined import JoinedGroup
    from macs.model import check_ranks

    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # transformers would otherwise put this rank on a GPU
    check_ranks(model, count, options["trust_remote_code"])  # on every rank, before they wait for one another
    group = JoinedGroup(device=device, timeout=rank_timeout)
    if group.index > 0:
        group.serve()
        sys.exit(0)
    return RanksEngine(model, count, lambda: group, **options)


def _count(ranks: str | int, joined: int, model: str, gpus: int, trust_remote_code: bool) -> int:
    if ranks == "auto":
        return joined or (_most_gpus(model, gpus, trust_remote_code) if gpus >= 2 else 1)
    try:
        count = int(ranks)
    except (TypeError, ValueError):
        raise ValueError(f"ranks is {ranks!r}; {FOR_RANKS}.") from None
    if count < 1:
        raise ValueError(f"ranks is {ranks!r}; {FOR_RANKS}.")
    if joined and count != joined:
        raise ValueError(f"ranks is {count}, but torchrun started {joined}; leave it out or use {joined}.")
    return count


def _most_gpus(model: str, gpus: int, trust_remote_code: bool) -> int:
    """All GPUs, or as many as divide the experts."""
    from macs.model import count_experts

    experts = count_experts(model, trust_remote_code)
    return max(g for g in range(1, gpus + 1) if experts % g == 0)
