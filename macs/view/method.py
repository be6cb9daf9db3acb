"""How it is computed: each formula with the paper's equation number and this layer's numbers put in."""

from __future__ import annotations

import numpy as np

from macs.trace import Trace
from macs.view.ledger import mean_speedup
from macs.view.markup import esc, num
from macs.view.shown import Shown
from macs.view.words import Words


def render(shown: Shown, words: Words) -> str:
    """Return the steps in the order in which a layer takes them."""
    steps = (_entropy, _weight, _base, _ratio, _capacity, _admission, _overflow, _straggler, _speedup, _distance)
    if not shown.scored:
        steps = (_straggler,)
    rows = "".join(_step(number, step(shown, words), words) for number, step in enumerate(steps, 1))
    return f'<p class="fn">{esc(words("method_s", l=shown.number))}</p><ol class="method">{rows}</ol>'


def _step(number: int, step: tuple[str, str, str], words: Words) -> str:
    key, formula, live = step
    source = f'<small>{esc(words(f"m_{key}_src"))}</small>'
    return f'<li><h3>{esc(words(f"m_{key}"))} {source}</h3><code>{esc(formula)}</code><code class="live">{esc(live)}</code></li>'


def _token(shown: Shown) -> int | None:
    """Return the patch to compute with: the one in focus, else the heaviest."""
    trace = shown.policy
    if shown.focus and shown.focus[0] == "token" and trace.tokens.visual_T[shown.focus[1]]:
        return shown.focus[1]
    visual_T = trace.tokens.visual_T & trace.tokens.valid_T
    return int(np.argmax(np.where(visual_T, shown.layers[2].decision.token_weight_T, -1))) if visual_T.any() else None


def _entropy(shown: Shown, words: Words) -> tuple[str, str, str]:
    formula = "H = −Σ p·ln p,  p = softmax(z)"
    token = _token(shown)
    if token is None:
        return "entropy", formula, words("empty_map")
    policy = shown.policy.policy
    entropy = shown.policy.entropy(policy.entropy_source, shown.layers[2])[token]
    return "entropy", formula, f"H = {num(entropy, 3)} nats  ({words(f'c_entropy_source_{policy.entropy_source}')})"


def _weight(shown: Shown, words: Words) -> tuple[str, str, str]:
    formula = "w = sigmoid(−δ·H~),  H~ = (H − mean)/(std + ε);  w = 1 (text)"
    token = _token(shown)
    if token is None:
        return "weight", formula, words("st_noimage")
    trace, layer = shown.policy, shown.layers[2]
    w, delta = float(layer.decision.token_weight_T[token]), trace.policy.delta
    standard = -np.log(w / (1 - w)) / delta if delta and 0 < w < 1 else 0.0
    return "weight", formula, f"w = sigmoid(−{delta:g} · {num(standard)}) = {num(w, 3)}"


def _base(shown: Shown, words: Words) -> tuple[str, str, str]:
    trace, layer = shown.policy, shown.layers[2]
    policy, experts, top_k = trace.policy, layer.num_experts, trace.top_k
    if policy.capacity_basis == "tokens":
        tokens = layer.pairs // top_k
        return "base", "C_base = γ·T·K/N", f"{policy.gamma:g} · {tokens} · {top_k} / {experts} = {num(policy.gamma * layer.pairs / experts)}"
    load = float(np.asarray(layer.decision.token_weight_T)[trace.tokens.valid_T].sum())
    return "base", "C_base = γ·Σw·K/N", f"{policy.gamma:g} · {num(load, 1)} · {top_k} / {experts} = {num(policy.gamma * load * top_k / experts)}"


def _ratio(shown: Shown, words: Words) -> tuple[str, str, str]:
    trace, layer = shown.policy, shown.layers[2]
    weight_T = np.where(trace.tokens.valid_T, layer.decision.token_weight_T, 0)
    visual = float(weight_T[trace.tokens.visual_T].sum())
    return "ratio", "R_v = Σ_visual w / Σ w", f"{num(visual, 1)} / {num(float(weight_T.sum()), 1)} = {num(float(layer.decision.visual_ratio), 3)}"


def _capacity(shown: Shown, words: Words) -> tuple[str, str, str]:
    layer, policy = shown.layers[2], shown.policy.policy
    if policy.capacity == "static":
        return "capacity", "C_j = C_base", f"C_j = {num(float(layer.decision.capacity_N[0]))}"
    groups = []
    for modality in (1, 0, -1):
        capacity_M = layer.decision.capacity_N[layer.modality_N == modality]
        if len(capacity_M):
            groups.append(f"{words.role(modality)} (m = {modality:+d}): {num(float(capacity_M[0]))}".replace("+0", "0").replace("-", "−"))
    return "capacity", "C_j = C_base·(1 + ρ·m_j·(R_v − 0.5))", f"ρ = {policy.rho:g};  " + ";  ".join(groups)


def _admission(shown: Shown, words: Words) -> tuple[str, str, str]:
    layer, policy = shown.layers[2], shown.policy.policy
    unit = "1" if policy.load == "tokens" else "w"
    formula = f"Σ {unit} ≤ C_j,  {words(f'c_priority_{policy.priority}')} ↓"
    return "admission", formula, f"{layer.kept} / {layer.pairs} {words('kept')}"


def _overflow(shown: Shown, words: Words) -> tuple[str, str, str]:
    layer, policy = shown.layers[2], shown.policy.policy
    formula = {"reroute": "argmax_{e on rank} s_e;  weight · s_new/s_old", "expand": "home rank = ⌊i·G/T⌋"}.get(policy.overflow, words(f"c_overflow_{policy.overflow}"))
    return "overflow", formula, f"{layer.rerouted} {words('rerouted')}, {layer.dropped} {words('dropped')}, {layer.expanded} {words('expanded')}"


def _straggler(shown: Shown, words: Words) -> tuple[str, str, str]:
    layer, ep_size = shown.layers[2], shown.policy.ep_size
    tokens_G = layer.rank_tokens(ep_size)
    return "straggler", "max_g n_g / (T·K/G)", f"{int(tokens_G.max())} / ({layer.pairs}/{ep_size}) = {num(layer.straggler(ep_size))}"


def _speedup(shown: Shown, words: Words) -> tuple[str, str, str]:
    ratio = mean_speedup(shown.now.vanilla, shown.policy)
    before, after = (int(t.layers[shown.layer].rank_tokens(t.ep_size).max()) for t in (shown.now.vanilla, shown.policy))
    live = f"{before} / {after} = {num(before / max(after, 1))};  {words('mean')}: {num(ratio)}  ({words('modelled')})"
    return "speedup", "max_g n_g(vanilla) / max_g n_g(policy)", live


def _distance(shown: Shown, words: Words) -> tuple[str, str, str]:
    run: Trace = shown.run.policy
    live = words("no_answer") if run.kl is None else f"{num(run.kl, 4)} nats"
    return "distance", "mean_t Σ p_vanilla·ln(p_vanilla/p_policy)", live
