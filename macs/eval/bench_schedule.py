"""What scheduling one layer costs beside that layer's experts: ``python -m macs bench schedule``.

A layer of Qwen3-VL-30B-A3B's sizes behind a skewed router, and both sides measured in one run on the same threads. The
experts are computed as leanly as PyTorch allows: rows sorted by expert, one product up and one down, SwiGLU, weights,
sum over slots. Several forms are tried, and the policies are compared with the fastest. This module knows no model.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from macs.config import PRESETS, Policy, checked_number, preset
from macs.core import DROPPED, REROUTED, modality_groups, schedule, token_weights

BOUNDS = {"token_drop": 0.01, "macs": 0.03}  # share of the experts' time that a policy may take
WARM_UP, EXPERT_WARM_UP = 3, 1
EXPERT_REPEATS = 3  # of the fastest form, after one run of each form


@dataclass(frozen=True)
class Sizes:
    """Sizes of the layer; ``visual`` of the ``tokens`` belong to one image."""

    tokens: int = 4096
    visual: int = 3072
    experts: int = 128
    top_k: int = 8
    ranks: int = 8
    hidden: int = 2048
    intermediate: int = 768


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``bench schedule``."""
    parser.add_argument("--threads", type=int, default=2, help="PyTorch's threads (default 2)")
    parser.add_argument("--repeats", type=int, default=20, help="timed runs of each policy (default 20)")
    parser.add_argument("--skew", type=float, default=0.5, help="deviation of the experts' popularity in logits (default 0.5)")
    parser.add_argument("--gamma", type=float, default=1.0, help="capacity factor (default 1.0)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the router (default 0)")


def main(args: argparse.Namespace, sizes: Sizes = Sizes()) -> int:
    """Print a table and one JSON line; return 0 if both bounds are met, else 1. Raises ValueError on a bad option."""
    if args.threads < 1 or args.repeats < 1:
        raise ValueError(f"threads is {args.threads} and repeats is {args.repeats}; use 1 or more of each.")
    checked_number("skew", args.skew, 0.0, 10.0)
    torch.set_num_threads(args.threads)
    policies = {name: preset(name, gamma=args.gamma) for name in PRESETS}
    policies["macs, effective basis"] = preset("macs", gamma=args.gamma, capacity_basis="effective")
    with torch.inference_mode():
        layer = skewed_layer(sizes, args.skew, args.seed)
        timed = {name: time_policy(layer, policy, sizes, args.repeats) for name, policy in policies.items()}
        experts = time_experts(layer, sizes)
    fastest = min(experts.values())
    ratio = {name: row["seconds"] / fastest for name, row in timed.items()}
    met = {name: ratio[name] <= bound for name, bound in BOUNDS.items()}
    print_table(sizes, args, layer, timed, experts, ratio)
    report = {
        "ratio": {name: ratio[name] for name in ("token_drop", "expanded_drop", "macs")},
        "met": met,
        "seconds": {"experts": experts, **{name: row["seconds"] for name, row in timed.items()}},
        "statistic": "median",
        "repeats": {"policies": args.repeats, "experts": EXPERT_REPEATS},
        "warm_up": {"policies": WARM_UP, "experts": EXPERT_WARM_UP},
        "sizes": vars(sizes),
        "router": {"skew": args.skew, "seed": args.seed, "gamma": args.gamma},
        "threads": torch.get_num_threads(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "machine": platform.machine(),
    }
    print(json.dumps(report))
    return 0 if all(met.values()) else 1


def skewed_layer(sizes: Sizes, skew: float, seed: int) -> dict[str, Tensor]:
    """Return the tensors that `schedule` takes; logits are N(0, 1), plus N(0, skew) per expert and once per modality too."""
    chance = torch.Generator().manual_seed(seed)
    image_T = torch.arange(sizes.tokens).lt(sizes.visual).int() - 1
    popular_N = skew * torch.randn(sizes.experts, generator=chance)
    by_modality_2N = skew * torch.randn(2, sizes.experts, generator=chance)
    noise_TN = torch.randn(sizes.tokens, sizes.experts, generator=chance)
    scores_TN = (noise_TN + popular_N + by_modality_2N[image_T + 1]).softmax(-1)
    weight_TK, expert_TK = scores_TN.topk(sizes.top_k)
    text, visual = (expert_TK[image_T == kind].flatten().bincount(minlength=sizes.experts) for kind in (-1, 0))
    entropy_T = torch.rand(sizes.tokens, generator=chance)
    return {
        "scores_TN": scores_TN,
        "expert_TK": expert_TK,
        "weight_TK": weight_TK / weight_TK.sum(-1, keepdim=True),
        "token_weight_T": token_weights(entropy_T, image_T, delta=1.0),
        "visual_T": image_T >= 0,
        "valid_T": torch.ones(sizes.tokens, dtype=torch.bool),
        "modality_N": modality_groups(visual, text),
    }


def time_policy(layer: dict[str, Tensor], policy: Policy, sizes: Sizes, repeats: int) -> dict[str, float]:
    """Return the median seconds of one `schedule` call, and the shares of pairs rerouted and dropped."""

    def run() -> None:
        schedule(**layer, policy=policy, ep_size=sizes.ranks)

    status_TC = schedule(**layer, policy=policy, ep_size=sizes.ranks).status_TC
    rerouted, dropped = (int((status_TC == code).sum()) / (sizes.tokens * sizes.top_k) for code in (REROUTED, DROPPED))
    return {"seconds": median_seconds(run, repeats, WARM_UP), "rerouted": rerouted, "dropped": dropped}


def time_experts(layer: dict[str, Tensor], sizes: Sizes) -> dict[str, float]:
    """Return seconds of the expert computation by form: one run each, and the median of more for the fastest."""
    chance = torch.Generator().manual_seed(0)
    # One expert's values in every expert's own memory: drawing 600 million numbers would take longer than the rest.
    up = torch.randn(2 * sizes.intermediate, sizes.hidden, generator=chance).mul_(0.02).bfloat16().repeat(sizes.experts, 1, 1)
    down = torch.randn(sizes.hidden, sizes.intermediate, generator=chance).mul_(0.02).bfloat16().repeat(sizes.experts, 1, 1)
    hidden_TD = torch.randn(sizes.tokens, sizes.hidden, generator=chance)

    def form(product: Callable, dtype: torch.dtype) -> Callable[[], Tensor]:
        wide = [part.to(dtype) for part in (hidden_TD, up, down, layer["weight_TK"])]
        return lambda: run_experts(*wide, layer["expert_TK"], product)

    forms = {
        "grouped_mm, bfloat16": (grouped, torch.bfloat16),
        "mm per expert, bfloat16": (one_by_one, torch.bfloat16),
        "grouped_mm, float32": (grouped, torch.float32),
    }
    form(*forms["grouped_mm, bfloat16"])()  # the first run pays for memory and thread pools
    seconds = {name: median_seconds(form(*choice), 1, 0) for name, choice in forms.items()}
    fastest = min(seconds, key=seconds.__getitem__)
    seconds[fastest] = median_seconds(form(*forms[fastest]), EXPERT_REPEATS, 0)
    return seconds


def run_experts(hidden_TD: Tensor, up: Tensor, down: Tensor, weight_TK: Tensor, expert_TK: Tensor, product: Callable) -> Tensor:
    """Return the routed experts' output: SwiGLU experts [N, 2I, D] and [N, D, I] on the rows that the router sent them."""
    tokens, top_k = expert_TK.shape
    expert_P, order_P = torch.sort(expert_TK.flatten(), stable=True)
    ends_N = expert_P.bincount(minlength=len(up)).cumsum(0)
    gate_PI, up_PI = product(hidden_TD.index_select(0, order_P // top_k), up, ends_N).chunk(2, -1)
    out_PD = product(F.silu(gate_PI).mul_(up_PI), down, ends_N)
    out_PD.mul_(weight_TK.flatten().index_select(0, order_P)[:, None])
    place_P = torch.empty_like(order_P).scatter_(0, order_P, torch.arange(len(order_P)))
    return out_PD.index_select(0, place_P).view(tokens, top_k, -1).sum(1)


def grouped(rows_PD: Tensor, weights: Tensor, ends_N: Tensor) -> Tensor:
    """All experts' products in one call, as transformers' ``grouped_mm`` experts make them."""
    return F.grouped_mm(rows_PD, weights.transpose(1, 2), offs=ends_N.int())


def one_by_one(rows_PD: Tensor, weights: Tensor, ends_N: Tensor) -> Tensor:
    """One product per expert, straight into the result."""
    out = rows_PD.new_empty(len(rows_PD), weights.shape[1])
    start = 0
    for weight, end in zip(weights, ends_N.tolist()):
        torch.mm(rows_PD[start:end], weight.t(), out=out[start:end])
        start = end
    return out


def median_seconds(run: Callable[[], object], repeats: int, warm_up: int) -> float:
    """Return the median wall time of ``run`` over ``repeats`` calls after ``warm_up`` calls that do not count."""
    times = []
    for _ in range(warm_up + repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times[warm_up:])


def print_table(sizes: Sizes, args: argparse.Namespace, layer: dict, timed: dict, experts: dict, ratio: dict) -> None:
    """Print the layer, the forms of the experts and what each policy costs beside the fastest."""
    load_N = layer["expert_TK"].flatten().bincount(minlength=sizes.experts)
    listed = ", ".join(f"{name} {value}" for name, value in vars(sizes).items())
    print(f"layer    {listed}; gamma {args.gamma:g}, {args.threads} threads")
    logits = f"logits N(0, 1) + N(0, {args.skew:g}) per expert + N(0, {args.skew:g}) per expert and modality"
    print(f"router   {logits}, seed {args.seed}: fullest expert {load_N.max() / load_N.float().mean():.1f} times the mean")
    fastest = min(experts, key=experts.__getitem__)
    for name, seconds in experts.items():
        print(f"experts  {name:<28} {seconds * 1e3:9.1f} ms{'   the fastest: 100 %' if name == fastest else ''}")
    for name, row in timed.items():
        bound = f"  (bound {BOUNDS[name]:.0%})" if name in BOUNDS else ""
        print(f"policy   {name:<28} {row['seconds'] * 1e3:9.2f} ms   {ratio[name]:7.2%}{bound:<14} "
              f"rerouted {row['rerouted']:.1%}, dropped {row['dropped']:.1%}")  # fmt: skip
