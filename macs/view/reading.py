"""Numbers that several views share, read from one layer of a trace: its pairs in queue order, and each expert's queue.

Axes: T tokens, P pairs the router made, N experts, K slots, C decided slots.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from macs.config import Policy
from macs.trace import DROPPED, EXPANDED, KEPT, PADDING, REROUTED, LayerTrace


@dataclass(frozen=True)
class Pairs:
    """The router's pairs of one layer, ordered by original expert, there by priority, highest first."""

    token_P: np.ndarray
    slot_P: np.ndarray
    origin_P: np.ndarray  # expert the router chose
    expert_P: np.ndarray  # expert that executes it; N where none does
    status_P: np.ndarray
    load_P: np.ndarray  # what the pair counts: 1, or w
    place_P: np.ndarray  # 0 for the first in its expert's queue
    running_P: np.ndarray  # load of its expert's queue up to it, itself included
    before_P: np.ndarray  # load of the pairs of the same expert and the same fate that come before it


@dataclass(frozen=True)
class Queues:
    """What each expert was routed and what became of it, in pairs and in load."""

    routed_N: np.ndarray
    visual_N: np.ndarray  # routed pairs of visual tokens
    kept_N: np.ndarray
    away_N: np.ndarray  # rerouted away
    dropped_N: np.ndarray
    taken_N: np.ndarray  # rerouted or expanded here
    executed_N: np.ndarray
    load_kept_N: np.ndarray
    load_away_N: np.ndarray
    load_dropped_N: np.ndarray
    load_taken_N: np.ndarray
    capacity_N: np.ndarray
    flows: tuple[tuple[int, int, int], ...]  # (from expert, to expert, pairs)

    @property
    def ratio_N(self) -> np.ndarray:
        """Return load ÷ capacity: what the router asked of an expert, and what was moved to it."""
        asked_N = self.load_kept_N + self.load_away_N + self.load_dropped_N
        return (asked_N + self.load_taken_N) / np.maximum(self.capacity_N, 1e-9)

    @property
    def turned_N(self) -> np.ndarray:
        """Return the pairs that each expert turned away."""
        return self.away_N + self.dropped_N


def pair_loads(layer: LayerTrace, policy: Policy) -> np.ndarray:
    """Return what one pair of each token counts [T]: 1, or its entropy weight."""
    weight_T = layer.decision.token_weight_T
    return np.ones(len(weight_T)) if policy.load == "tokens" else np.asarray(weight_T, np.float64)


def queues(layer: LayerTrace, policy: Policy, visual_T: np.ndarray) -> Queues:
    """Return every expert's queue in one layer."""
    experts, top_k = layer.num_experts, layer.expert_TK.shape[1]
    decision, load_T = layer.decision, pair_loads(layer, policy)
    status_TK = decision.status_TC[:, :top_k]

    def tally(chosen_TC: np.ndarray, expert_TC: np.ndarray, weight_T: np.ndarray | None = None) -> np.ndarray:
        token_P, slot_P = np.nonzero(chosen_TC)
        weights = None if weight_T is None else weight_T[token_P]
        return np.bincount(expert_TC[token_P, slot_P], weights, minlength=experts)[:experts]

    fates = {status: status_TK == status for status in (KEPT, REROUTED, DROPPED)}
    arrived_TC = np.isin(decision.status_TC, (REROUTED, EXPANDED))
    moved = np.nonzero(fates[REROUTED])
    flow_F, count_F = np.unique(layer.expert_TK[moved] * experts + decision.expert_TC[moved], return_counts=True)
    return Queues(
        routed_N=np.asarray(decision.tokens_before_N),
        visual_N=tally((status_TK != PADDING) & visual_T[:, None], layer.expert_TK),
        kept_N=tally(fates[KEPT], layer.expert_TK),
        away_N=tally(fates[REROUTED], layer.expert_TK),
        dropped_N=tally(fates[DROPPED], layer.expert_TK),
        taken_N=tally(arrived_TC, decision.expert_TC),
        executed_N=np.asarray(decision.tokens_after_N),
        load_kept_N=tally(fates[KEPT], layer.expert_TK, load_T),
        load_away_N=tally(fates[REROUTED], layer.expert_TK, load_T),
        load_dropped_N=tally(fates[DROPPED], layer.expert_TK, load_T),
        load_taken_N=tally(arrived_TC, decision.expert_TC, load_T),
        capacity_N=np.asarray(decision.capacity_N, np.float64),
        flows=tuple((int(f) // experts, int(f) % experts, int(n)) for f, n in zip(flow_F, count_F)),
    )


def pairs(layer: LayerTrace, policy: Policy) -> Pairs:
    """Return the pairs of one layer in the order in which their experts admit them (§3.4)."""
    top_k = layer.expert_TK.shape[1]
    token_P, slot_P = np.nonzero(layer.decision.status_TC[:, :top_k] != PADDING)
    origin_P = layer.expert_TK[token_P, slot_P]
    priority_P = layer.priority(policy)[token_P, slot_P]
    order_P = np.lexsort((slot_P, token_P, -priority_P, origin_P))
    token_P, slot_P, origin_P = token_P[order_P], slot_P[order_P], origin_P[order_P]
    status_P = layer.decision.status_TC[token_P, slot_P]
    load_P = pair_loads(layer, policy)[token_P]
    return Pairs(
        token_P=token_P,
        slot_P=slot_P,
        origin_P=origin_P,
        expert_P=layer.decision.expert_TC[token_P, slot_P],
        status_P=status_P,
        load_P=load_P,
        place_P=_before(origin_P, np.ones(len(origin_P))).astype(int),
        running_P=_before(origin_P, load_P) + load_P,
        before_P=_before(origin_P * 8 + status_P, load_P),
    )


def _before(group_P: np.ndarray, value_P: np.ndarray) -> np.ndarray:
    """Return, for each entry, the sum of the values of its group that stand before it."""
    order_P = np.argsort(group_P, kind="stable")
    sorted_P = value_P[order_P]
    running_P = np.cumsum(sorted_P) - sorted_P
    starts_P = np.searchsorted(group_P[order_P], group_P[order_P])
    result_P = np.empty(len(value_P))
    result_P[order_P] = running_P - running_P[starts_P] if len(value_P) else 0
    return result_P


def bars(queue: Queues, expert: int) -> tuple[tuple[int | str, float, float], ...]:
    """Return (fate, bottom, height) of the pieces of an expert's bar: kept and taken below capacity, the rest above it."""
    kept, taken = float(queue.load_kept_N[expert]), float(queue.load_taken_N[expert])
    away, dropped = float(queue.load_away_N[expert]), float(queue.load_dropped_N[expert])
    line = max(float(queue.capacity_N[expert]), kept + taken) if away + dropped else kept + taken
    return ((KEPT, 0.0, kept), ("taken", kept, taken), (REROUTED, line, away), (DROPPED, line + away, dropped))
