"""The schedule of one layer as plain loops over plain numbers, written from the specification and slow on purpose.

Nothing here is shared with ``macs.core``: no tensor, no vectorised step, none of its helpers.
"""

from __future__ import annotations

import math
import struct

KEPT, REROUTED, DROPPED, PADDING, EXPANDED, UNUSED = range(6)
SLACK = 1e-6


def entropy(features):
    """Entropy in nats of softmax(features), one token."""
    top = max(features)
    mass = [math.exp(z - top) for z in features]
    total = math.fsum(mass)
    return math.fsum(-(m / total) * math.log(m / total) for m in mass if m > 0)


def token_weights(entropies, images, *, delta, eps, normalize):
    """Load weight of every token: sigmoid(-delta * standardised entropy) where visual, else 1."""
    weights = [1.0] * len(entropies)
    for t, image in enumerate(images):
        if image < 0:
            continue
        peers = [entropies[u] for u, other in enumerate(images) if other >= 0 and (normalize == "batch" or other == image)]
        mean = math.fsum(peers) / len(peers)
        deviation = math.sqrt(math.fsum((h - mean) ** 2 for h in peers) / len(peers))
        x = delta * (entropies[t] - mean) / (deviation + eps)
        weights[t] = 1 / (1 + math.exp(x)) if x < 700 else 0.0
    return weights


def mixed(bits):
    """SplitMix64's last step on 64 bits."""
    for by, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        bits = (bits ^ bits >> by) * factor % 2**64
    return bits


def lot(value, seed, place):
    """The control's random number in [0, 1) of a value at a place of its table."""
    bits = int.from_bytes(struct.pack(">d", value))
    return (mixed(mixed((place * 0x9E3779B97F4A7C15 + seed) % 2**64) ^ bits) >> 11) / 2**53


def capacities(policy, tokens, top_k, num_experts, weight_sum, visual_ratio, modality):
    """Capacity of every expert."""
    amount = tokens if policy["capacity_basis"] == "tokens" else weight_sum
    base = policy["gamma"] * amount * top_k / num_experts
    result = []
    for expert in range(num_experts):
        capacity = base
        if policy["capacity"] == "modality":
            capacity = base * (1 + policy["rho"] * modality[expert] * (visual_ratio - 0.5))
        if policy["load"] == "tokens":
            capacity = math.ceil(capacity - 1e-9)
        result.append(max(1.0, capacity))
    return result


def schedule(scores, experts, weights, w, visual, valid, *, policy, ep_size, modality, router_normalizes=True):
    """Decide one layer; returns a dict with the names of the golden files."""
    num_experts, top_k, count = len(modality), len(experts[0]), len(scores)
    real = [t for t in range(count) if valid[t]]
    weight_sum = math.fsum(w[t] for t in real)
    visual_ratio = math.fsum(w[t] for t in real if visual[t]) / weight_sum if weight_sum else 0.0
    capacity = capacities(policy, len(real), top_k, num_experts, weight_sum, visual_ratio, modality)
    slots = {t: [(experts[t][k], weights[t][k]) for k in range(top_k)] for t in real}
    if policy["overflow"] == "expand":
        for t in real:
            slots[t] += extra_candidates(scores[t], slots[t], real.index(t), len(real), ep_size)
    columns = top_k + (num_experts // ep_size if policy["overflow"] == "expand" else 0)

    def load_of(t):
        return w[t] if policy["load"] == "entropy" else 1.0

    def priority(t, k):
        expert, weight = slots[t][k]
        if policy["priority"] == "weight":
            return abs(weight)
        if policy["priority"] == "random":
            return lot(scores[t][expert], policy["seed"], t * columns + k + 1)
        return scores[t][expert] * (load_of(t) if policy["priority"] == "weighted_score" else 1.0)

    load = [0.0] * num_experts
    admitted, overflow = admit_all(slots, capacity, load, load_of, priority, policy["overflow"] == "none")
    expert_of = {pair: slots[pair[0]][pair[1]][0] for pair in admitted}
    weight_of = {pair: slots[pair[0]][pair[1]][1] for pair in admitted}
    status = {pair: EXPANDED if pair[1] >= top_k else KEPT for pair in admitted}
    if policy["overflow"] == "reroute":
        moves = reroute(scores, experts, overflow, capacity, load, load_of, priority, num_experts // ep_size, policy["min_affinity"])
        for (t, k), target in moves.items():
            old, new = scores[t][experts[t][k]], scores[t][target]
            expert_of[t, k], status[t, k] = target, REROUTED
            weight_of[t, k] = weights[t][k] * new / old if old > 0 else 0.0
    if policy["renormalize"] == "always" or (policy["renormalize"] == "router" and router_normalizes):
        for t in real:
            left = math.fsum(weight_of.get((t, k), 0.0) for k in range(columns))
            lost = any(status.get((t, k)) != KEPT for k in range(top_k))
            changed = lost or any((t, k) in status for k in range(top_k, columns))
            if left > 0 and changed:
                for k in range(columns):
                    if (t, k) in weight_of:
                        weight_of[t, k] *= math.fsum(weights[t]) / left

    def fate(t, k):
        return PADDING if not valid[t] else status.get((t, k), DROPPED if k < top_k else UNUSED)

    def totals(pairs, amount):
        return [math.fsum(amount(t) for t, expert in pairs if expert == j) for j in range(num_experts)]

    before = [(t, experts[t][k]) for t in real for k in range(top_k)]
    after = [(t, expert) for (t, _), expert in expert_of.items()]
    table = [[(t, k) for k in range(columns)] for t in range(count)]
    return {
        "visual_ratio": visual_ratio,
        "capacity": capacity,
        "expert": [[expert_of.get(pair, num_experts) for pair in row] for row in table],
        "status": [[fate(*pair) for pair in row] for row in table],
        "routing_weight": [[weight_of.get(pair, 0.0) for pair in row] for row in table],
        "tokens_before": totals(before, lambda t: 1),
        "tokens_after": totals(after, lambda t: 1),
        "effective_before": totals(before, lambda t: w[t]),
        "effective_after": totals(after, lambda t: w[t]),
    }


def extra_candidates(scores, chosen, position, tokens, ep_size):
    """(expert, weight) of every expert of the token's home rank; None as the expert where it is in the top-k."""
    per_rank = len(scores) // ep_size
    home = position * ep_size // tokens
    first_expert, first_weight = chosen[0]
    extras = []
    for expert in range(home * per_rank, (home + 1) * per_rank):
        taken = any(expert == e for e, _ in chosen)
        ratio = scores[expert] / scores[first_expert] if scores[first_expert] > 0 else 0.0
        extras.append((None if taken else expert, first_weight * ratio))
    return extras


def admit_all(slots, capacity, load, load_of, priority, everyone):
    """Admit expert by expert; adds to ``load`` and returns (admitted, overflow) as lists of (token, slot)."""
    admitted, overflow = [], []
    for expert in range(len(capacity)):
        queue = [(t, k) for t in slots for k, (e, _) in enumerate(slots[t]) if e == expert]
        queue.sort(key=lambda pair: (-priority(*pair), pair))
        running = 0.0
        for pair in queue:
            running += load_of(pair[0])
            if everyone or running <= capacity[expert] + SLACK:
                admitted.append(pair)
                load[expert] = running
            else:
                overflow.append(pair)
    return admitted, overflow


def reroute(scores, experts, overflow, capacity, load, load_of, priority, per_rank, min_affinity):
    """Move overflow pairs within their rank; adds to ``load`` and returns {(token, slot): new expert}."""
    pending, moves = sorted(overflow), {}
    used = {t: set(experts[t]) for t, _ in pending}

    def candidate(t, k):
        original = experts[t][k]
        first = original // per_rank * per_rank
        choices = [e for e in range(first, first + per_rank) if e not in used[t]]
        choices = [e for e in choices if scores[t][e] >= min_affinity * scores[t][original]]
        return min(choices, key=lambda e: (-scores[t][e], e), default=None)

    for _ in range(per_rank):
        proposals = {}
        for t, rank in sorted({(t, experts[t][k] // per_rank) for t, k in pending}):
            able = [(t, k) for u, k in pending if u == t and experts[t][k] // per_rank == rank and candidate(t, k) is not None]
            if able:
                t, k = min(able, key=lambda pair: (-scores[t][experts[t][pair[1]]], pair[1]))
                proposals.setdefault(candidate(t, k), []).append((t, k))
        if not proposals:
            break
        for expert, queue in proposals.items():
            queue.sort(key=lambda pair: (-priority(*pair), pair))  # as of its original expert
            used_up = load[expert]
            for t, k in queue:
                used[t].add(expert)
                used_up += load_of(t)
                if used_up <= capacity[expert] + SLACK:
                    load[expert] = used_up
                    moves[t, k] = expert
                    pending.remove((t, k))
    return moves
