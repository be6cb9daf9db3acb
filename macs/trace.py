"""Trace: the immutable record of one run, and its file.

A trace holds what the router said and what the policy did, layer by layer, as numpy arrays. From the recorded
scores ``reschedule`` gives another policy's decisions without the model. It knows no model and no page.

Axes: T tokens of the prefill batch (row-major, padding included), N experts, K slots, C decided slots, G ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Mapping

import numpy as np
import torch

from macs.config import Policy, check_ep_size
from macs.core import DROPPED, EXPANDED, KEPT, PADDING, REROUTED, Assignment, policy_weights, priorities, schedule_layers

MAX_ROWS = 2**22  # pairs scheduled in one call: more would only need more memory
UNSCORED = "This trace holds expert ids without router scores, so no other policy can be scheduled from it; record a run with the workbench for that."


@dataclass(frozen=True)
class Tokens:
    """The tokens of the prefill batch; everything a view needs to know of them, in row order."""

    id_T: np.ndarray  # int64 vocabulary ids
    text_T: tuple[str, ...]  # what each token reads as
    visual_T: np.ndarray  # bool
    valid_T: np.ndarray  # bool, False for padding
    image_T: np.ndarray  # int64 image of a visual token, -1 of any other
    sequence_T: np.ndarray  # int64 row of the batch
    cell_T4: np.ndarray  # float32 (x0, y0, x1, y1) of a visual token's patch, as fractions of its image; NaN elsewhere
    position_T2: np.ndarray  # int64 (row, column) of a visual token in its image's grid; -1 elsewhere

    def __len__(self) -> int:
        return len(self.id_T)


@dataclass(frozen=True)
class LayerTrace:
    """One MoE layer: the router's output and the decision."""

    layer: int  # index of the decoder layer
    scores_TN: np.ndarray  # float32 router scores, unbiased, before top-k normalisation; NaN in a trace that lacks them
    expert_TK: np.ndarray  # int64 the router's choice
    weight_TK: np.ndarray  # float32 the router's weights
    entropy_T: np.ndarray  # float32 nats, of the hidden state entering this layer; NaN where not visual
    modality_N: np.ndarray  # int8: 1 visual, -1 text, 0 shared expert
    decision: Assignment  # numpy arrays
    seconds: Mapping[str, np.ndarray] = field(default_factory=dict)  # measured, per rank: schedule, experts, ...

    @property
    def num_experts(self) -> int:
        return self.scores_TN.shape[1]

    def count(self, status: int) -> int:
        """Return the number of pairs with this status."""
        return int((self.decision.status_TC == status).sum())

    kept = property(lambda self: self.count(KEPT))
    rerouted = property(lambda self: self.count(REROUTED))
    dropped = property(lambda self: self.count(DROPPED))
    expanded = property(lambda self: self.count(EXPANDED))

    @property
    def pairs(self) -> int:
        """Return T·K, the pairs the router made of tokens that are not padding."""
        return int(self.decision.tokens_before_N.sum())

    def rank_tokens(self, ep_size: int, *, before: bool = False) -> np.ndarray:
        """Return tokens executed per rank [G], or with ``before`` the tokens routed to it."""
        tokens_N = self.decision.tokens_before_N if before else self.decision.tokens_after_N
        return np.asarray(tokens_N).reshape(ep_size, -1).sum(1)

    def straggler(self, ep_size: int) -> float:
        """Return max over ranks of tokens executed ÷ mean over ranks of tokens vanilla routes (eq. 2, per rank)."""
        return float(self.rank_tokens(ep_size).max() / max(self.pairs / ep_size, 1e-12))

    def priority(self, policy: Policy) -> np.ndarray:
        """Return who is admitted first [T, K] (§3.4): of one expert's pairs the higher; ties by token, then slot."""
        top_k = self.expert_TK.shape[1]
        empty_TC = np.zeros(self.decision.status_TC.shape)  # extra candidates have places too, on which lots depend
        score_TC, weight_TC = empty_TC.copy(), empty_TC
        score_TC[:, :top_k] = np.take_along_axis(self.scores_TN, self.expert_TK, 1)
        weight_TC[:, :top_k] = self.weight_TK
        return priorities(*map(torch.from_numpy, (score_TC, weight_TC, self.decision.token_weight_T)), policy).numpy()[:, :top_k]

    def expert_straggler(self) -> float:
        """Return the same ratio with experts in the place of ranks (eq. 2 as the paper counts)."""
        return self.straggler(self.num_experts)

    def lost_every_expert(self) -> int:
        """Return the number of valid tokens that no expert executes."""
        status_TC = self.decision.status_TC
        executed_T = np.isin(status_TC, (KEPT, REROUTED, EXPANDED)).any(1)
        return int((~executed_T & ~(status_TC == PADDING).all(1)).sum())


@dataclass(frozen=True)
class Trace:
    """One run of a model under one policy."""

    policy: Policy
    ep_size: int
    router_normalizes: bool
    tokens: Tokens
    layers: tuple[LayerTrace, ...]
    entropy_first_T: np.ndarray  # float32 nats, hidden state entering the first MoE layer; NaN where not visual
    entropy_embedding_T: np.ndarray  # the projected vision embedding; NaN where not visual or not found
    prompt: str
    answer: str
    kl: float | None = None  # mean KL of the next-token distribution from vanilla's, nats; None for vanilla itself
    calibrated: bool = False  # False: modality groups unknown, every expert shared
    images: tuple[bytes, ...] = ()  # the pictures as the processor got them, PNG
    seconds: Mapping[str, float] = field(default_factory=dict)  # measured: prefill, decode, total
    about: Mapping[str, Any] = field(default_factory=dict)  # model, revision, device, dtype, backend, versions, date, source
    lacks: tuple[str, ...] = ()  # what the record behind an imported trace did not hold: scores, weights, entropies, modality, ...

    @property
    def num_experts(self) -> int:
        return self.layers[0].num_experts

    @property
    def top_k(self) -> int:
        return self.layers[0].expert_TK.shape[1]

    @property
    def scored(self) -> bool:
        """Return whether router scores were recorded, without which nothing but the number of ranks can change."""
        return "scores" not in self.lacks

    @cached_property
    def grids(self) -> tuple[tuple[int, int], ...]:
        """Return (rows, columns) of visual tokens for each image."""
        tokens = self.tokens
        images = range(int(tokens.image_T.max(initial=-1)) + 1)
        return tuple(tuple(int(n) + 1 for n in tokens.position_T2[tokens.image_T == i].max(0)) for i in images)

    def entropy(self, source: str, layer: LayerTrace) -> np.ndarray:
        """Return the recorded entropies [T] of ``entropy_source``, in nats, NaN where a token is not visual."""
        return {"first": self.entropy_first_T, "embedding": self.entropy_embedding_T, "layer": layer.entropy_T}[source]

    def straggler(self) -> float:
        """Return the mean over layers of the per-layer straggler factor."""
        return float(np.mean([layer.straggler(self.ep_size) for layer in self.layers]))

    def share(self, status: int) -> float:
        """Return the share of all pairs, over all layers, with this status."""
        return sum(layer.count(status) for layer in self.layers) / max(sum(layer.pairs for layer in self.layers), 1)

    def reschedule(self, policy: Policy, *, ep_size: int | None = None) -> Trace:
        """Return the trace with the decisions of ``policy`` on the recorded scores; answer and times stay the run's.

        Raises ValueError if ``ep_size`` does not divide the experts, or scores or the entropy source were not recorded.
        """
        ep_size = check_ep_size(self.ep_size if ep_size is None else ep_size, self.num_experts)
        if not self.scored:
            if policy != self.policy:
                raise ValueError(UNSCORED)
            return replace(self, ep_size=ep_size)
        per_call = max(1, MAX_ROWS // max(self.tokens.valid_T.size * self.top_k, 1))
        layers = [done for i in range(0, len(self.layers), per_call) for done in self._decide(self.layers[i : i + per_call], policy, ep_size)]
        return replace(self, policy=policy, ep_size=ep_size, layers=tuple(layers))

    def _decide(self, layers: tuple[LayerTrace, ...], policy: Policy, ep_size: int) -> list[LayerTrace]:
        tokens = self.tokens
        decided = schedule_layers(
            *(torch.from_numpy(np.stack([getattr(layer, name) for layer in layers])) for name in ("scores_TN", "expert_TK", "weight_TK")),
            self._weights(layers, policy),
            *map(torch.from_numpy, (tokens.visual_T, tokens.valid_T)),
            policy=policy,
            ep_size=ep_size,
            modality_LN=torch.from_numpy(np.stack([layer.modality_N for layer in layers])),
            router_normalizes=self.router_normalizes,
        )
        return [replace(layer, decision=to_numpy(decision), seconds={}) for layer, decision in zip(layers, decided)]

    def _weights(self, layers: tuple[LayerTrace, ...], policy: Policy) -> torch.Tensor:
        """Return w of each layer's tokens [L, T]; one source for all layers is weighed once."""
        tokens = self.tokens
        image_T = torch.from_numpy(np.where(tokens.valid_T, tokens.image_T, -1))
        rows = []
        for layer in layers if policy.entropy_source == "layer" else layers[:1]:
            entropy_T = self.entropy(policy.entropy_source, layer)
            if np.isnan(entropy_T[tokens.visual_T & tokens.valid_T]).any():
                raise ValueError(f"This trace holds no entropies of source {policy.entropy_source!r}; use another source.")
            rows.append(policy_weights(policy, torch.from_numpy(np.nan_to_num(entropy_T)), image_T))
        return torch.stack(rows).expand(len(layers), -1)


def to_numpy(assignment: Assignment) -> Assignment:
    """Return the assignment with its tensors as numpy arrays on the host."""
    values = {name: getattr(assignment, name) for name in assignment.__dataclass_fields__}
    host = {name: value.detach().cpu().numpy() if torch.is_tensor(value) else value for name, value in values.items()}
    return Assignment(**{**host, "visual_ratio": float(host["visual_ratio"])})
