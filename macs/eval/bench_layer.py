"""One MoE layer at published shapes, ranks in turn: ``python -m macs bench layer``.

Each rank's share of the experts is executed after the others' on one device, by the code that real ranks run, and the
layer takes as long as its slowest rank, after the schedule. What G devices add, communication and waiting, is left out;
so is attention, which no policy changes. The entropy weights are timed apart: by default a model needs them once, not in
every layer. Weights are random, routing is synthetic; both are described in the output.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

import torch
import transformers
from torch import Tensor, nn
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Experts
from transformers.models.qwen3_vl_moe.modeling_qwen3_vl_moe import Qwen3VLMoeTextExperts

from macs.config import PRESETS, Policy, check_ep_size, checked_number, preset
from macs.core import DROPPED, REROUTED, Assignment, feature_entropy, schedule, token_weights
from macs.eval.bench_schedule import Sizes, skewed_layer
from macs.eval.machine import environment, host_syncs
from macs.model.clock import Stopwatch
from macs.model.parallel import partial_output

GAMMA_STEP, MAX_GAMMA = 0.01, 8.0  # of the search for equal straggler load
ROUND_TOKENS, MAX_ROUNDS = 4096, 10  # --repeats counts rounds of so many tokens; shorter layers get more, longer ones fewer
VISUAL_SHARE = 0.75  # of the tokens, all of one image


@dataclass(frozen=True)
class Shape:
    """A published model's MoE layer."""

    hidden: int
    intermediate: int
    experts: int
    top_k: int
    make: Callable[[Any], nn.Module]  # transformers' experts module from its config
    config: Callable[[Shape, int], Any]


def _qwen(shape: Shape, count: int) -> Any:
    text = {"hidden_size": shape.hidden, "moe_intermediate_size": shape.intermediate, "num_experts": count}
    return transformers.Qwen3VLMoeConfig(text_config=text).text_config


def _kimi(shape: Shape, count: int) -> Any:
    return transformers.DeepseekV3Config(hidden_size=shape.hidden, moe_intermediate_size=shape.intermediate, n_routed_experts=count)


SHAPES = {
    "qwen3-vl-30b-a3b": Shape(2048, 768, 128, 8, Qwen3VLMoeTextExperts, _qwen),
    "kimi-vl-a3b": Shape(2048, 1408, 64, 6, DeepseekV3Experts, _kimi),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), metavar="NAME", help=f"of {', '.join(SHAPES)} (default: all)")
    parser.add_argument("--tokens", nargs="+", type=int, default=[1024, 4096, 16384], metavar="T")
    parser.add_argument("--gamma", nargs="+", type=float, default=[0.5, 1.0, 2.0], metavar="GAMMA")
    parser.add_argument("--ranks", type=int, default=8, help="ranks that take turns (default 8)")
    parser.add_argument("--skew", type=float, default=0.5, help="deviation of the experts' popularity in logits (default 0.5)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, help="PyTorch's threads on a CPU (default: all cores)")
    parser.add_argument("--repeats", type=int, help=f"timed rounds of {ROUND_TOKENS} tokens, more of shorter layers (default: 1 on a CPU, 40 on a GPU)")
    parser.add_argument("--out", type=Path, help="write the JSON to this file too")


def main(args: argparse.Namespace) -> int:
    """Print a table for each shape and length, then one JSON line; raises ValueError on a bad option."""
    _check(args)
    if args.threads:
        torch.set_num_threads(args.threads)
    report = {**_conditions(args), **environment(args.device), "layers": []}
    with torch.inference_mode():
        for name in args.shapes:
            bench = Bench(SHAPES[name], args.ranks, torch.device(args.device), getattr(torch, args.dtype))
            for tokens in args.tokens:
                layer = bench.measure(tokens, args)
                report["layers"].append({"shape": name, **layer})
                print(table(name, report["layers"][-1], args), flush=True)
                if args.out:
                    args.out.parent.mkdir(parents=True, exist_ok=True)
                    args.out.write_text(json.dumps(report, indent=1) + "\n")  # after each, as a sweep takes minutes
    print(json.dumps(report))
    return 0


class Bench:
    """One layer's weights, all experts of it; ``measure`` routes tokens through them."""

    def __init__(self, shape: Shape, ranks: int, device: torch.device, dtype: torch.dtype) -> None:
        self.shape, self.ranks, self.device, self.dtype = shape, ranks, device, dtype
        count = shape.experts // ranks
        config = shape.config(shape, count)
        config._experts_implementation = "grouped_mm"
        with torch.device("meta"):
            self._experts = shape.make(config)
        self._experts._is_expert_parallel = True  # as it is set on a real rank
        chance = torch.Generator().manual_seed(0)
        # One rank's values in every rank's own memory: drawing them all would take longer than the rest.
        self._weights = {
            name: (torch.randn(parameter.shape, generator=chance) * 0.02).to(device, dtype).repeat(ranks, 1, 1)
            for name, parameter in self._experts.named_parameters()
        }

    def measure(self, tokens: int, args: argparse.Namespace) -> dict[str, Any]:
        """Return the rows of one length: each policy at each gamma, and the baseline at MACS's straggler load if that is below vanilla's."""
        visual = int(tokens * VISUAL_SHARE)
        sizes = Sizes(tokens, visual, self.shape.experts, self.shape.top_k, self.ranks, self.shape.hidden, self.shape.intermediate)
        layer = {name: value.to(self.device) for name, value in skewed_layer(sizes, args.skew, args.seed).items()}
        hidden_TD = torch.randn(tokens, self.shape.hidden, generator=torch.Generator().manual_seed(args.seed)).to(self.device, self.dtype)
        routed_N = layer["expert_TK"].flatten().bincount(minlength=self.shape.experts)
        plans = {("vanilla", None, "vanilla"): preset("vanilla")}
        for gamma in args.gamma:
            plans |= {(name, gamma, "same gamma"): preset(name, gamma=gamma) for name in PRESETS if name != "vanilla"}
            plans["macs, effective", gamma, "same gamma"] = preset("macs", gamma=gamma, capacity_basis="effective")
            for name in ("macs", "macs, effective"):
                policy = plans[name, gamma, "same gamma"]
                target = _fullest(decide(layer, weigh(layer, hidden_TD, policy), policy, self.ranks).tokens_after_N, self.ranks)
                if target < _fullest(routed_N, self.ranks):
                    equal = equal_straggler_gamma(routed_N, target, tokens * self.shape.top_k, self.ranks)
                    plans["token_drop", gamma, f"straggler load of {name}"] = preset("token_drop", gamma=equal)
        repeats = args.repeats or (40 if self.device.type == "cuda" else 1)
        rounds = max(1, min(MAX_ROUNDS, repeats * ROUND_TOKENS // tokens))
        rows = self._rows(layer, hidden_TD, plans, rounds)
        vanilla = rows[0]
        for row in rows:
            row["time_over_vanilla"] = row["seconds"] / vanilla["seconds"]
            row["modelled"] = max(row["tokens_per_rank"]) / max(vanilla["tokens_per_rank"])
        ones_T = torch.ones(tokens, device=self.device)
        syncs = host_syncs(lambda: decide(layer, ones_T, preset("macs"), self.ranks), self.device)
        return {"tokens": tokens, "visual": visual, "rounds": rounds, "host_syncs_of_a_schedule": syncs, "rows": rows}

    def _rows(self, layer: dict[str, Tensor], hidden_TD: Tensor, plans: dict[tuple, Policy], rounds: int) -> list[dict[str, Any]]:
        """Time all plans in rounds, so that a slow spell of the machine meets all of them."""
        weight = {key: weigh(layer, hidden_TD, policy) for key, policy in plans.items()}
        decided = {key: decide(layer, weight[key], policy, self.ranks) for key, policy in plans.items()}
        weighing: dict[tuple, list[float]] = {key: [] for key in plans}
        scheduling: dict[tuple, list[float]] = {key: [] for key in plans}
        shares: dict[tuple, list[list[float]]] = {key: [[] for _ in range(self.ranks)] for key in plans}
        self._share(hidden_TD, decided["vanilla", None, "vanilla"], 0)  # the first pays for memory and thread pools
        for _ in range(rounds):
            for key, policy in plans.items():
                if policy.overflow != "none":
                    weighing[key].append(seconds(lambda: weigh(layer, hidden_TD, policy), self.device))
                    scheduling[key].append(seconds(lambda: decide(layer, weight[key], policy, self.ranks), self.device))
                for rank in range(self.ranks):
                    shares[key][rank].append(seconds(lambda: self._share(hidden_TD, decided[key], rank), self.device))
        return [self._row(key, plans[key], decided[key], (weighing[key], scheduling[key]), shares[key]) for key in plans]

    def _row(self, key: tuple, policy: Policy, decision: Assignment, before: tuple[list[float], list[float]], shares: list[list[float]]) -> dict[str, Any]:
        per_rank = [statistics.median(times) for times in shares]
        weigh_seconds, schedule_seconds = (statistics.median(times) if times else 0.0 for times in before)  # vanilla: none
        status_TC, executed_N = decision.status_TC, decision.tokens_after_N
        pairs = int(decision.tokens_before_N.sum())
        total = schedule_seconds + max(per_rank)
        return {
            "policy": key[0],
            "gamma": policy.gamma if key[1] else None,
            "compared_at": key[2],
            "macs_gamma": key[1],
            "dropped": int((status_TC == DROPPED).sum()) / pairs,
            "rerouted": int((status_TC == REROUTED).sum()) / pairs,
            "tokens_per_rank": executed_N.view(self.ranks, -1).sum(1).tolist(),
            "straggler": _fullest(executed_N, self.ranks) / (pairs / self.ranks),
            "expert_straggler": float(executed_N.max()) / (pairs / len(executed_N)),
            "weigh_seconds": weigh_seconds,
            "schedule_seconds": schedule_seconds,
            "rank_seconds": per_rank,
            "slowest_rank": max(range(self.ranks), key=per_rank.__getitem__),
            "seconds": total,
            "schedule_over_layer": schedule_seconds / total,
        }

    def _share(self, hidden_TD: Tensor, decision: Assignment, rank: int) -> Tensor:
        """Execute one rank's share, as ``macs.model.parallel`` does on a real one."""
        count = self.shape.experts // self.ranks
        for name, weights in self._weights.items():
            setattr(self._experts, name, nn.Parameter(weights[rank * count : (rank + 1) * count], requires_grad=False))
        weight_TC = decision.weight_TC.to(self.dtype)
        return partial_output(self._experts.forward, hidden_TD, decision.expert_TC, weight_TC, rank * count, count)[0]


def weigh(layer: dict[str, Tensor], hidden_TD: Tensor, policy: Policy) -> Tensor:
    """Return w [T] from hidden states: once a forward with entropy_source="first", in every layer with "layer"."""
    visual_T = layer["visual_T"]
    if policy.load == "tokens":
        return torch.ones(len(visual_T), device=visual_T.device)
    entropy_T = torch.zeros(len(visual_T), device=visual_T.device).masked_scatter_(visual_T, feature_entropy(hidden_TD[visual_T]))
    return token_weights(entropy_T, visual_T.int() - 1, delta=policy.delta, eps=policy.eps)


def decide(layer: dict[str, Tensor], weight_T: Tensor, policy: Policy, ranks: int) -> Assignment:
    """Return a layer's decision: what a policy does in every layer."""
    return schedule(**{**layer, "token_weight_T": weight_T}, policy=policy, ep_size=ranks)


def _fullest(executed_N: Tensor, ranks: int) -> int:
    return int(executed_N.view(ranks, -1).sum(1).max())


def equal_straggler_gamma(routed_N: Tensor, target: int, pairs: int, ranks: int) -> float:
    """Return the gamma at which token drop's fullest rank executes ``target`` tokens, or comes nearest to it."""
    gammas = torch.arange(1, round(MAX_GAMMA / GAMMA_STEP) + 1, device=routed_N.device) * GAMMA_STEP
    capacity_S = torch.ceil(gammas * pairs / len(routed_N) - 1e-9).clamp_min(1)
    fullest_S = torch.minimum(routed_N[None], capacity_S[:, None]).view(len(gammas), ranks, -1).sum(-1).amax(1)
    return round(float(gammas[(fullest_S - target).abs().argmin()]), 4)


def seconds(run: Callable[[], Any], device: torch.device) -> float:
    """Return the seconds that ``run`` takes on ``device``."""
    with Stopwatch(device) as watch:
        run()
    return watch.seconds


def _conditions(args: argparse.Namespace) -> dict[str, Any]:
    popularity = f"N(0, {args.skew:g})"
    return {
        "what": "one MoE layer, ranks in turn: schedule + slowest rank's experts; no communication, no attention; entropy weights apart",
        "ranks": args.ranks,
        "dtype": args.dtype,
        "experts": "transformers grouped_mm, random weights",
        "routing": f"logits N(0, 1) + {popularity} per expert + {popularity} per expert and modality, softmax, seed {args.seed}",
        "visual_share": VISUAL_SHARE,
        "statistic": "median of the rounds, after a warm-up",
    }


def table(name: str, layer: dict[str, Any], args: argparse.Namespace) -> str:
    """Return one shape and length as text."""
    shape = SHAPES[name]
    sizes = f"hidden {shape.hidden}, intermediate {shape.intermediate}, {shape.experts} experts, top-{shape.top_k}"
    head = (f"{'policy':<16} {'gamma':>6} {'dropped':>8} {'rerouted':>8} {'straggler':>9} {'per expert':>10} "
            f"{'entropy ms':>10} {'schedule ms':>11} {'slowest ms':>10} {'rank':>4} {'÷ vanilla':>9} {'modelled':>8} {'schedule ÷ layer':>16}")  # fmt: skip
    lines = ["", f"{name}: {sizes}, T = {layer['tokens']}, {args.ranks} ranks in turn on {args.device}, {args.dtype}, {layer['rounds']} rounds", head]
    for row in layer["rows"]:
        gamma = f"{row['gamma']:.2f}" if row["gamma"] is not None else ""
        mark = f"   {row['compared_at']} at {row['macs_gamma']:g}" if row["compared_at"].startswith("straggler") else ""
        lines.append(
            f"{row['policy']:<16} {gamma:>6} {row['dropped']:>8.1%} {row['rerouted']:>8.1%} {row['straggler']:>9.2f} {row['expert_straggler']:>10.2f} "
            f"{row['weigh_seconds'] * 1e3:>10.1f} {row['schedule_seconds'] * 1e3:>11.1f} {max(row['rank_seconds']) * 1e3:>10.1f} {row['slowest_rank']:>4} "
            f"{row['time_over_vanilla']:>9.2f} {row['modelled']:>8.2f} {row['schedule_over_layer']:>16.1%}{mark}"
        )
    if layer["host_syncs_of_a_schedule"] is not None:
        lines.append(f"the host waits for the device {layer['host_syncs_of_a_schedule']} times in a schedule")
    return "\n".join(lines)


def _check(args: argparse.Namespace) -> None:
    for name in args.shapes:
        if name not in SHAPES:
            raise ValueError(f"shape is {name!r}; use one of {', '.join(SHAPES)}.")
        check_ep_size(args.ranks, SHAPES[name].experts, "ranks")
    if min(args.tokens) < 16 or (1 if args.repeats is None else args.repeats) < 1 or (args.threads or 1) < 1:
        raise ValueError("Use 16 tokens or more, and 1 or more repeats and threads.")
    if args.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is 'cuda', and this machine has no GPU; use cpu.")
    for gamma in args.gamma:
        checked_number("gamma", gamma, 0.01, MAX_GAMMA)
    checked_number("skew", args.skew, 0.0, 10.0)
