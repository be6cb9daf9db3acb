"""One MoE layer at published shapes, ranks in turn: ``python -m macs bench layer``.

The ranks' shares of the experts are executed one after another on one device, by the code that real ranks run, and the
layer takes as long as its slowest rank, after the schedule. What G devices add, communication and waiting, is left out;
so is attention, which no policy changes. The entropy weights are timed apart: by default a model needs them once, not in
every layer. Weights are random, routing is synthetic; both are described in the output.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any, Callable, NamedTuple

import torch
from torch import Tensor, nn

from macs.config import PRESETS, Policy, check_ep_size, checked_number, preset
from macs.core import DROPPED, REROUTED, Assignment, feature_entropy, schedule, token_weights
from macs.eval.bench_schedule import Sizes, skewed_layer
from macs.eval.layer_report import conditions, table
from macs.eval.machine import environment, host_syncs
from macs.eval.shapes import SHAPES, Shape
from macs.model.clock import Stopwatch
from macs.model.parallel import partial_output

GAMMA_STEP, MAX_GAMMA = 0.01, 8.0  # of the search for equal straggler load
ROUND_TOKENS, MIN_ROUNDS, MAX_ROUNDS = 4096, 2, 10  # --repeats counts rounds of so many tokens; shorter layers get more
CLOSE = 0.8  # a rank with a smaller share of the fullest rank's tokens cannot be the slowest, and is not run
VISUAL_SHARE = 0.75  # of the tokens, all of one image


class Plan(NamedTuple):
    """What one row of the table measures."""

    name: str
    macs_gamma: float | None  # the block of the table; None for vanilla
    compared_at: str


class Timed(NamedTuple):
    """One round of one plan, in seconds."""

    weighing: float
    scheduling: float
    shares: dict[int, float]  # by rank
    over_vanilla: float  # schedule and slowest rank ÷ vanilla's slowest rank, measured just before


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
    parser.add_argument("--repeats", type=int, help=f"timed rounds of {ROUND_TOKENS} tokens, more of shorter layers (default: 3 on a CPU, 40 on a GPU)")
    parser.add_argument("--out", type=Path, help="write the JSON to this file too")


def main(args: argparse.Namespace) -> int:
    """Print a table for each shape and length, then one JSON line; raises ValueError on a bad option."""
    _check(args)
    if args.threads:
        torch.set_num_threads(args.threads)
    report = {**conditions(args, visual_share=VISUAL_SHARE, close=CLOSE), **environment(args.device), "layers": []}
    with torch.inference_mode():
        for name in args.shapes:
            bench = Bench(SHAPES[name], args.ranks, torch.device(args.device), getattr(torch, args.dtype))
            for tokens in args.tokens:
                layer = bench.measure(tokens, args)
                report["layers"].append({"shape": name, **layer})
                print(table(name, SHAPES[name], report["layers"][-1], args), flush=True)
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
        plans = {Plan("vanilla", None, "vanilla"): preset("vanilla")}
        for gamma in args.gamma:
            plans |= {Plan(name, gamma, "same gamma"): preset(name, gamma=gamma) for name in PRESETS if name != "vanilla"}
            plans[Plan("macs, effective", gamma, "same gamma")] = preset("macs", gamma=gamma, capacity_basis="effective")
            for name in ("macs", "macs, effective"):
                policy = plans[Plan(name, gamma, "same gamma")]
                target = _fullest(decide(layer, weigh(layer, hidden_TD, policy), policy, self.ranks).tokens_after_N, self.ranks)
                if target < _fullest(routed_N, self.ranks):
                    equal = equal_straggler_gamma(routed_N, target, tokens * self.shape.top_k, self.ranks)
                    plans[Plan("token_drop", gamma, f"straggler load of {name}")] = preset("token_drop", gamma=equal)
        repeats = args.repeats or (40 if self.device.type == "cuda" else 3)
        rounds = max(MIN_ROUNDS, min(MAX_ROUNDS, repeats * ROUND_TOKENS // tokens))
        rows = self._rows(layer, hidden_TD, plans, rounds)
        for row in rows:
            row["modelled"] = max(row["tokens_per_rank"]) / max(rows[0]["tokens_per_rank"])
        ones_T = torch.ones(tokens, device=self.device)
        syncs = host_syncs(lambda: decide(layer, ones_T, preset("macs"), self.ranks), self.device)
        return {"tokens": tokens, "visual": visual, "rounds": rounds, "host_syncs_of_a_schedule": syncs, "rows": rows}

    def _rows(self, layer: dict[str, Tensor], hidden_TD: Tensor, plans: dict[Plan, Policy], rounds: int) -> list[dict[str, Any]]:
        """Time all plans in rounds, vanilla anew before each gamma: what a policy takes is set beside a neighbour in time."""
        vanilla, *others = plans
        weight = {plan: weigh(layer, hidden_TD, policy) for plan, policy in plans.items()}
        decided = {plan: decide(layer, weight[plan], policy, self.ranks) for plan, policy in plans.items()}
        runs: dict[Plan, list[Timed]] = {plan: [] for plan in plans}
        self._timed_shares(hidden_TD, decided[vanilla])  # the first run pays for memory and thread pools
        for _ in range(rounds):
            gamma = None
            for plan in others:
                if plan.macs_gamma != gamma:
                    gamma = plan.macs_gamma
                    shares = self._timed_shares(hidden_TD, decided[vanilla])
                    beside = max(shares.values())
                    runs[vanilla].append(Timed(0.0, 0.0, shares, 1.0))  # vanilla weighs and schedules nothing
                policy = plans[plan]
                weighing = seconds(lambda: weigh(layer, hidden_TD, policy), self.device)
                scheduling = seconds(lambda: decide(layer, weight[plan], policy, self.ranks), self.device)
                shares = self._timed_shares(hidden_TD, decided[plan])
                runs[plan].append(Timed(weighing, scheduling, shares, (scheduling + max(shares.values())) / beside))
        return [_row(plan, plans[plan], decided[plan], runs[plan], self.ranks) for plan in plans]

    def _timed_shares(self, hidden_TD: Tensor, decision: Assignment) -> dict[int, float]:
        """Return the seconds of each rank that may be the slowest."""
        tokens_G = decision.tokens_after_N.view(self.ranks, -1).sum(1).tolist()
        close = [rank for rank, tokens in enumerate(tokens_G) if tokens >= CLOSE * max(tokens_G)]
        return {rank: seconds(lambda: self._share(hidden_TD, decision, rank), self.device) for rank in close}

    def _share(self, hidden_TD: Tensor, decision: Assignment, rank: int) -> Tensor:
        """Execute one rank's share, as ``macs.model.parallel`` does on a real one."""
        count = self.shape.experts // self.ranks
        for name, weights in self._weights.items():
            setattr(self._experts, name, nn.Parameter(weights[rank * count : (rank + 1) * count], requires_grad=False))
        weight_TC = decision.weight_TC.to(self.dtype)
        return partial_output(self._experts.forward, hidden_TD, decision.expert_TC, weight_TC, rank * count, count)[0]


def _row(plan: Plan, policy: Policy, decision: Assignment, runs: list[Timed], ranks: int) -> dict[str, Any]:
    status_TC, executed_N = decision.status_TC, decision.tokens_after_N
    pairs = int(decision.tokens_before_N.sum())
    per_rank = {rank: statistics.median(run.shares[rank] for run in runs) for rank in runs[0].shares}
    schedule_seconds = statistics.median(run.scheduling for run in runs)
    total = schedule_seconds + max(per_rank.values())
    return {
        "policy": plan.name,
        "gamma": policy.gamma if plan.macs_gamma else None,
        "compared_at": plan.compared_at,
        "macs_gamma": plan.macs_gamma,
        "dropped": int((status_TC == DROPPED).sum()) / pairs,
        "rerouted": int((status_TC == REROUTED).sum()) / pairs,
        "tokens_per_rank": executed_N.view(ranks, -1).sum(1).tolist(),
        "straggler": _fullest(executed_N, ranks) / (pairs / ranks),
        "expert_straggler": float(executed_N.max()) / (pairs / len(executed_N)),
        "weigh_seconds": statistics.median(run.weighing for run in runs),
        "schedule_seconds": schedule_seconds,
        "rank_seconds": [per_rank.get(rank) for rank in range(ranks)],
        "slowest_rank": max(per_rank, key=per_rank.__getitem__),
        "seconds": total,
        "schedule_over_layer": schedule_seconds / total,
        "time_over_vanilla": statistics.median(run.over_vanilla for run in runs),
        "seconds_range": [extreme(run.scheduling + max(run.shares.values()) for run in runs) for extreme in (min, max)],
    }


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
