"""What each rank does in a run, and how rank 0's trace gets the times of all of them.

The functions ``start`` and ``run`` are called on every rank with the same arguments; nothing but the experts' exchange,
and a flag that says whether to stop, passes between ranks meanwhile.
"""

from __future__ import annotations

import hashlib
import socket
import time
from dataclasses import dataclass, field, replace
from typing import Any, Mapping

import numpy as np
import torch
import torch.distributed as dist
import transformers

from macs.config import Policy
from macs.engine.base import EngineFailure, EngineInfo, Progress, Request, Run
from macs.engine.generation import Watch, complete, generate, read
from macs.engine.local import describe
from macs.engine.rank import Rank
from macs.model import Loaded, load, read_calibration
from macs.model.parallel import clocked
from macs.model.timeline import CallTimes, split_collectives
from macs.trace import Trace

PINGS = 8  # exchanges from which the offset between two hosts' clocks is taken


@dataclass
class Model:
    """What ``start`` leaves on a rank."""

    loaded: Loaded
    calibration: Mapping[int, Any] | None
    offset: float  # seconds to add to this host's clock to make it rank 0's
    warm: set[tuple] = field(default_factory=set)  # lengths and policies that have run here


@dataclass(frozen=True)
class Share:
    """One rank's part of a run."""

    run: Run | None  # of rank 0
    digest: str  # of everything this rank decided and answered
    times: tuple[CallTimes, ...]  # per MoE layer, of the prefill
    schedule: tuple[float, ...]  # seconds, likewise
    offset: float
    peak_bytes: Mapping[str, int]
    host: str


def start(rank: Rank, name_or_path: str, dtype: str, exchange: str, trust_remote_code: bool) -> EngineInfo:
    """Load this rank's share of the model and return what is known of the whole."""
    transformers.logging.disable_progress_bar()
    if rank.index > 0:
        transformers.logging.set_verbosity_error()  # all ranks read the same files; rank 0 says what is odd about them
    device = f"cuda:{torch.cuda.current_device()}" if rank.device == "cuda" else "cpu"
    loaded = load(name_or_path, dtype=dtype, device=device, ranks=rank.size, exchange=exchange, trust_remote_code=trust_remote_code)
    calibration = read_calibration(loaded)
    rank.loaded = Model(loaded, calibration, _clock_offset(rank))
    info = describe(loaded, calibration is not None)
    where = f"{rank.size} × {rank.device}, {dist.get_backend()}"
    return replace(info, ep_size=rank.size, ep_sizes=(rank.size,), measured=True, device=where)


def run(rank: Rank, request: Request, policy: Policy, forced: tuple[int, ...] | None) -> Share:
    """Run one request on this rank's share of the model; raises ValueError or Stopped on all ranks or on none."""
    own = rank.loaded
    rank.progress(Progress(policy.preset, "encode"))
    batch = read(own.loaded, request)
    given = {"ep_size": rank.size, "calibration": own.calibration}
    seen = (batch["input_ids"].shape[1], policy.load, policy.capacity, policy.overflow)
    if seen not in own.warm:  # else the first policy of a comparison would pay for the others
        generate(own.loaded, batch, policy, max_new_tokens=1, watch=Watch(lambda _: rank.mark(), rank.agreed_stop), **given)
        own.warm.add(seen)
    with clocked(own.loaded.model, rank.mark) as records:
        watch = Watch(rank.progress, rank.agreed_stop)
        generated = generate(own.loaded, batch, policy, watch=watch, max_new_tokens=request.max_new_tokens, forced=forced, **given)
    layers = generated.trace.layers
    return Share(
        run=complete(own.loaded, request, batch, generated, about={}, kl=None) if rank.index == 0 else None,
        digest=_digest(generated.trace, generated.answer_A),
        times=tuple(record.read() for record in records),
        schedule=tuple(float(layer.seconds["schedule"][0]) for layer in layers),
        offset=own.offset,
        peak_bytes=rank.peak_bytes(),
        host=socket.gethostname(),
    )


def put_together(shares_G: list[Share], info: EngineInfo, exchange: str) -> Run:
    """Return rank 0's run with the times of all ranks in it; raises EngineFailure if the ranks did not do the same."""
    first = shares_G[0].run
    for index, share in enumerate(shares_G):
        if share.digest != shares_G[0].digest:
            raise EngineFailure(f"Rank {index} decided otherwise than rank 0, so the run is void. Use ranks on devices of one kind.")
    layers = tuple(replace(layer, seconds=_layer_seconds(shares_G, i)) for i, layer in enumerate(first.trace.layers))
    for i, layer in enumerate(layers):
        counted_G = [share.times[i].pairs for share in shares_G]
        if counted_G != layer.rank_tokens(len(shares_G)).tolist():
            raise EngineFailure(f"The ranks executed {counted_G} pairs in layer {layer.layer}, not those of the schedule; the run is void.")
    about = dict(first.trace.about) | {
        "device": info.device,
        "parameters": info.parameters,
        "times": f"measured on {len(shares_G)} ranks",
        "exchange": exchange,
        "ranks": [{"host": share.host, "peak_bytes": dict(share.peak_bytes)} for share in shares_G],
    }
    return replace(first, trace=replace(first.trace, layers=layers, about=about))


def _layer_seconds(shares_G: list[Share], layer: int) -> dict[str, np.ndarray]:
    times_G = [share.times[layer] for share in shares_G]
    communication_G, waiting_G = split_collectives(times_G, [share.offset for share in shares_G])
    return {
        "experts": np.array([times.experts[1] - times.experts[0] for times in times_G]),
        "schedule": np.array([share.schedule[layer] for share in shares_G]),
        "communication": np.array(communication_G),
        "waiting": np.array(waiting_G),
    }


def _digest(trace: Trace, answer_A: tuple[int, ...]) -> str:
    digest = hashlib.sha256(repr(answer_A).encode())
    for layer in trace.layers:
        digest.update(layer.decision.expert_TC.tobytes() + layer.decision.status_TC.tobytes())
    return digest.hexdigest()


def _clock_offset(rank: Rank) -> float:
    """Return the seconds to add to this host's clock: 0 on rank 0's own host, else from the quickest of a few exchanges."""
    hosts: list[Any] = [None] * rank.size
    dist.all_gather_object(hosts, _host_identity(), group=rank.control)
    offset = 0.0
    for peer in range(1, rank.size):
        if hosts[peer] != hosts[0] and rank.index in (0, peer):
            found = _ping(rank, peer)
            offset = found if rank.index == peer else offset
    return offset


def _ping(rank: Rank, peer: int) -> float:
    """Return on ``peer`` rank 0's clock less its own, in seconds, and 0 on rank 0."""
    stamp = torch.zeros(1, dtype=torch.float64)
    best = (float("inf"), 0.0)
    for _ in range(PINGS):
        if rank.index == 0:
            dist.recv(stamp, peer, group=rank.control)
            stamp[0] = time.perf_counter()
            dist.send(stamp, peer, group=rank.control)
        else:
            sent = time.perf_counter()
            dist.send(stamp, 0, group=rank.control)
            dist.recv(stamp, 0, group=rank.control)
            got = time.perf_counter()
            best = min(best, (got - sent, stamp.item() - (sent + got) / 2))
    return best[1] if rank.index else 0.0


def _host_identity() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read()
    except OSError:
        return socket.gethostname()
