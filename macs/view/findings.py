"""Three sentences: who was overloaded, what the policy did, what that gained and cost."""

from __future__ import annotations

import numpy as np

from macs.engine.compare import MAX_GAMMA
from macs.view.markup import esc, num
from macs.view.shown import Shown
from macs.view.words import Words


def render(shown: Shown, words: Words) -> str:
    """Return the three findings of the layer looked at."""
    if not shown.scored:
        return f'<div class="find"><div><h3>{esc(words("f_over"))}</h3><p>{overloaded(shown, words)}</p></div></div>'
    name = words.inside(shown.policy.policy.preset)
    parts = (
        (words("f_over"), overloaded(shown, words)),
        (words("f_did", name=name), done(shown, words)),
        (words("f_cost"), gain_and_cost(shown, words)),
    )
    return '<div class="find">' + "".join(f"<div><h3>{esc(title)}</h3><p>{text}</p></div>" for title, text in parts) + "</div>"


def overloaded(shown: Shown, words: Words) -> str:
    """Say which rank vanilla waits for, and which of its experts is fullest."""
    vanilla, ep_size = shown.layers[0], shown.policy.ep_size
    tokens_G = vanilla.rank_tokens(ep_size, before=True)
    rank = int(np.argmax(tokens_G))
    of_rank = vanilla.decision.tokens_before_N.reshape(ep_size, -1)[rank]
    expert = rank * len(of_rank) + int(np.argmax(of_rank))
    values = {"l": shown.number, "tk": vanilla.pairs, "e": expert, "m": int(of_rank.max())}
    if ep_size == 1:
        return words.html("find_over_one", **values)
    ratio = tokens_G[rank] / max(vanilla.pairs / ep_size, 1e-12)
    return words.html("find_over", g=rank, n=int(tokens_G[rank]), x=num(ratio), **values)


def done(shown: Shown, words: Words) -> str:
    """Say what became of the layer's pairs under the policy, and which rank is slowest now."""
    vanilla, _, layer = shown.layers
    ep_size = shown.policy.ep_size
    tokens_G = layer.rank_tokens(ep_size)
    rank = int(np.argmax(tokens_G))
    still = rank == int(np.argmax(vanilla.rank_tokens(ep_size, before=True)))
    slow = words("slow_still" if still else "slow_now", g=rank, n=int(tokens_G[rank]))
    counts = {"a": layer.kept, "b": layer.rerouted, "c": layer.dropped, "x": layer.expanded, "tk": layer.pairs, "slow": slow}
    if layer.kept == layer.pairs and not layer.expanded:
        return words.html("find_did_none", **counts)
    key = {"reroute": "find_did", "expand": "find_did_expand"}.get(shown.policy.policy.overflow, "find_did_drop")
    return words.html(key, **counts)


def gain_and_cost(shown: Shown, words: Words) -> str:
    """Say how much faster the policy is, what the baseline drops beside it, and what both answer."""
    slowest = [
        (vanilla.rank_tokens(shown.policy.ep_size).max(), layer.rank_tokens(shown.policy.ep_size).max())
        for vanilla, layer in zip(shown.now.vanilla.layers, shown.policy.layers)
    ]
    here = slowest[shown.layer]
    total = (sum(before for before, _ in slowest), sum(after for _, after in slowest))
    gain = words.html("find_cost", x=pace(*here, words), y=pace(*total, words), kind=words("modelled"))
    return f'{gain} {beside(shown, words)} <span class="answers">{answers(shown, words)}</span>'


def pace(before: float, after: float, words: Words) -> str:
    """Return "1.54× faster" for the time ``before`` against ``after``."""
    ratio = before / max(after, 1)
    if 0.995 <= ratio < 1.005:
        return words("no_faster")
    return words("faster", x=num(ratio)) if ratio > 1 else words("slower", x=num(1 / max(ratio, 1e-9)))


def beside(shown: Shown, words: Words) -> str:
    """Say what the baseline drops in this layer, and whether it is the baseline at equal time."""
    values = {"base": words.inside(shown.base.policy.preset), "d": shown.layers[1].dropped}
    if shown.beside == "same_time" and shown.same_time == "unreached":
        return words.html("cost_unreached", max=f"{MAX_GAMMA:g}", **values)
    if shown.beside == "same_time" and shown.same_time in ("near", "fixed"):
        return words.html("cost_near_time", x=num(shown.base.straggler()), y=num(shown.policy.straggler()), **values)
    return words.html(f"cost_{shown.beside}", **values)


def answers(shown: Shown, words: Words) -> str:
    """Say what the policy and the baseline answer, or that the answers wait for a run."""
    if shown.stale:
        return words.html("ans_wait")
    ours, theirs, vanilla = shown.policy.answer, shown.base.answer, shown.now.vanilla.answer
    if ours == theirs == vanilla:
        return words.html("ans_both_still", a=_clip(ours))
    if ours == theirs:
        return words.html("ans_both_new", a=_clip(ours), v=_clip(vanilla))
    names = {"name": words.policy(shown.policy.policy.preset), "base": words.inside(shown.base.policy.preset)}
    return words.html("ans_differ", a=_clip(ours), b=_clip(theirs), **names)


def _clip(answer: str, limit: int = 60) -> str:
    return answer if len(answer) <= limit else answer[: limit - 1].rstrip() + "…"
