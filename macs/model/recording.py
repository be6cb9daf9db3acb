"""What one forward pass showed, and the trace made of it once it is over."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn

from macs.config import VERSION, Policy
from macs.core import Assignment, check_values, policy_weights
from macs.model.clock import Stopwatch
from macs.model.layout import token_texts
from macs.model.router import Reading
from macs.trace import LayerTrace, Tokens, Trace, to_numpy


@dataclass
class LayerRecord:
    """One MoE layer of a pass, as tensors on its device; ``clocks`` holds this process's measured parts by name."""

    index: int
    scores_TN: Tensor
    expert_TK: Tensor
    weight_TK: Tensor  # without the scale per expert that a family may multiply by afterwards
    entropy_T: Tensor
    modality_N: Tensor
    decision: Assignment
    clocks: dict[str, Stopwatch]


@dataclass
class ForwardPass:
    """One call of the model: its tokens, and what its MoE layers showed so far."""

    phase: str  # prefill or decode
    tokens: Tokens
    visual_T: Tensor
    valid_T: Tensor
    image_T: Tensor
    entropy_embedding_T: Tensor  # NaN until the language model is called, and where a token is not visual
    layers: list[LayerRecord] = field(default_factory=list)
    token_weight_T: Tensor | None = None  # of a source that is the same for all layers

    def weights(self, policy: Policy, entropy_T: Tensor) -> Tensor:
        """Return w [T] of this layer under ``policy``; raises ValueError if the source's entropies are not there."""
        if self.token_weight_T is not None:
            return self.token_weight_T
        if policy.entropy_source == "embedding":
            entropy_T = self.entropy_embedding_T
        known_T = torch.where(self.visual_T, entropy_T.to(self.visual_T.device), 0.0)
        weight_T = policy_weights(policy, known_T, self.image_T)
        if policy.entropy_source != "layer":
            self.token_weight_T = weight_T
        return weight_T


class Recording:
    """What ``apply`` yields: the trace of the last complete prefill, and how many decode steps followed it."""

    def __init__(self, model: nn.Module, policy: Policy, ep_size: int, processor: Any, calibrated: bool) -> None:
        self.policy = policy
        self.decode_steps = 0
        self.reading: Reading | None = None
        self.processor = processor
        self._ep_size, self._calibrated = ep_size, calibrated
        self._about = _describe(model)
        self._prefill: ForwardPass | None = None
        self._trace: Trace | None = None

    def add(self, done: ForwardPass) -> None:
        """Take over a pass that ended."""
        if done.phase == "decode":
            self.decode_steps += 1
        else:
            self._prefill, self._trace, self.decode_steps = done, None, 0

    @property
    def trace(self) -> Trace:
        """Return the trace of the last prefill, without prompt and answer; raises RuntimeError if none was complete."""
        if self._prefill is None:
            raise RuntimeError(
                "No forward pass was recorded; call the model inside `with apply(...)`, in the thread that entered it."
            )
        if self._trace is None:
            self._trace = self._build(self._prefill)
            self._prefill = replace(self._prefill, layers=[])  # the trace holds it all on the host
        return self._trace

    def _build(self, done: ForwardPass) -> Trace:
        tokenizer = getattr(self.processor, "tokenizer", self.processor)
        ids_T = done.tokens.id_T
        texts = token_texts(ids_T, tokenizer) if tokenizer is not None else tuple(f"#{token}" for token in ids_T)
        layers = tuple(_layer_trace(record, done.valid_T) for record in done.layers)
        return Trace(
            policy=self.policy,
            ep_size=self._ep_size,
            router_normalizes=self.reading.normalizes,
            tokens=replace(done.tokens, text_T=texts),
            layers=layers,
            entropy_first_T=layers[0].entropy_T,
            entropy_embedding_T=_host(done.entropy_embedding_T),
            prompt="",
            answer="",
            calibrated=self._calibrated,
            about=self._about | {"router_scoring": self.reading.scoring},
        )


def _layer_trace(record: LayerRecord, valid_T: Tensor) -> LayerTrace:
    scores_TN, expert_TK, weight_TK = record.scores_TN.cpu(), record.expert_TK.cpu(), record.weight_TK.cpu()
    # On an accelerator the scheduler leaves this look at the values to whoever brings them to the host.
    check_values(scores_TN, expert_TK, weight_TK, record.decision.token_weight_T.cpu(), valid_T.cpu())
    return LayerTrace(
        layer=record.index,
        scores_TN=scores_TN.numpy(),
        expert_TK=expert_TK.numpy(),
        weight_TK=weight_TK.numpy(),
        entropy_T=_host(record.entropy_T),
        modality_N=_host(record.modality_N),
        decision=to_numpy(record.decision),
        seconds={name: np.array([clock.seconds]) for name, clock in record.clocks.items()},
    )


def _host(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy()


def _describe(model: nn.Module) -> dict[str, Any]:
    parameter = next(model.parameters())
    return {
        "class": type(model).__name__,
        "model": Path(model.config._name_or_path or type(model).__name__).name,  # no one's folders belong in a trace
        "device": str(parameter.device),
        "dtype": str(parameter.dtype).removeprefix("torch."),
        "versions": {"macs": VERSION, "torch": torch.__version__, "transformers": transformers.__version__},
    }
