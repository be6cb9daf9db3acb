"""The seam: a context manager that puts a policy around a transformers MoE model and records what happens.

Example, 4 experts, top-2: the router of some layer sends token 7 to experts (2, 0) with weights (0.7, 0.3), and the
policy drops the pair with expert 0. The experts are then called with ids (2, 4) and weights (1.0, 0): id 4 = N is
nobody's expert, costs no computation, and adds exactly 0.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from typing import Any, Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from macs.config import Policy, check_ep_size, preset
from macs.core import feature_entropy, schedule
from macs.model.anatomy import Anatomy, MoeLayer, dissect
from macs.model.calibration import modality_tensors
from macs.model.clock import Stopwatch
from macs.model.experts import skipping_dropped
from macs.model.layout import lay_out
from macs.model.recording import ForwardPass, LayerRecord, Recording
from macs.model.router import SCORINGS, read_router
from macs.model.views import View, Views, grids_of, unplaced, views_of

OnLayer = Callable[[int, int, str], None]

# The sessions that this thread has entered, innermost last. Hooks sit on modules that all threads share, so each asks
# here whether the running forward pass is its own: a policy binds the thread that entered it, and no other.
_entered = threading.local()


@contextmanager
def apply(
    model: nn.Module,
    policy: Policy | str = "macs",
    *,
    ep_size: int = 1,
    modality: Mapping[int, Any] | None = None,
    processor: Any = None,
    inputs: Mapping[str, Any] | None = None,
    pictures: Sequence[Any] = (),
    on_layer: OnLayer | None = None,
    **fields: Any,
) -> Iterator[Recording]:
    """Run ``model`` under ``policy`` inside ``with``; yields a ``Recording`` whose ``trace`` is the last prefill's.

    ``policy`` is a Policy or a preset's name, with ``fields`` put in. ``ep_size`` is the number of ranks over which the
    experts are placed. ``modality`` holds m_j, one of -1, 0, 1 for each expert, by decoder layer (§3.3); without it all
    experts are shared. ``processor`` gives tokens their text, ``inputs`` (the processor's batch) gives images their
    grid, and ``pictures`` (those given to the processor) the tiles and paddings of families that have some.
    ``on_layer(layer, layers, phase)`` is called before each MoE layer and may raise to stop the run.

    Decode steps (one new token per sequence after a filled cache) stay as the router made them unless ``phase="all"``.
    Only forward passes of the thread that entered are changed and recorded; of nested uses on one model the innermost.
    For inference: no gradient flows through a changed routing weight. Raises ValueError if the model has nothing to
    schedule, or on a bad policy, ep_size or modality.
    """
    policy = policy.with_(**fields) if isinstance(policy, Policy) else preset(policy, **fields)
    anatomy = dissect(model)
    check_ep_size(ep_size, anatomy.num_experts)
    recording = Recording(model, policy, ep_size, processor, calibrated=modality is not None)
    session = _Session(model, anatomy, recording, ep_size, modality_tensors(modality, anatomy), inputs or {}, on_layer)
    session.sizes = [picture.size for picture in pictures] or getattr(inputs, "picture_sizes", [])
    with ExitStack() as undo:
        for layer in anatomy.layers:
            undo.enter_context(skipping_dropped(layer.experts))
        for handle in session.hook():
            undo.callback(handle.remove)
        mine = _sessions()  # held, because a generator may be closed from another thread
        mine.append(session)
        undo.callback(mine.remove, session)
        yield recording


class _Session:
    """One use of ``apply``: what its hooks share while it lasts."""

    def __init__(self, model, anatomy: Anatomy, recording: Recording, ep_size: int, modality, inputs, on_layer) -> None:
        self.model, self.anatomy, self.recording = model, anatomy, recording
        self._policy, self._ep_size, self._modality = recording.policy, ep_size, modality
        self._inputs, self._on_layer = inputs, on_layer
        self._pass: ForwardPass | None = None
        self._first_TN: Tensor | None = None  # of the router that was called last
        self._seen: list[list[View]] = []  # by the vision tower, call by call
        self.sizes: Sequence[tuple[int, int]] = ()  # (width, height) of the pictures

    def hook(self) -> Iterator[Any]:
        """Register the hooks, yielding each handle at once so that none is left behind if a later one fails."""
        yield self.model.register_forward_pre_hook(self._mine(self._begin), with_kwargs=True)
        yield self.model.register_forward_hook(self._mine(self._end))
        yield self.anatomy.text.register_forward_pre_hook(self._mine(self._see_embeddings), with_kwargs=True)
        if self.anatomy.vision_tower is not None:
            yield self.anatomy.vision_tower.register_forward_pre_hook(self._mine(self._see_grids), with_kwargs=True)
        for number, layer in enumerate(self.anatomy.layers):
            yield layer.router.register_forward_hook(self._mine(self._see_router))
            yield layer.experts.register_forward_pre_hook(self._mine(self._before_experts, number, layer))

    def _mine(self, do: Callable, *bound: Any) -> Callable:
        """Return a hook that does nothing in another thread's pass, or inside a nested use on the same model."""

        def hook(module: nn.Module, *rest: Any) -> Any:
            innermost = next((s for s in reversed(_sessions()) if s.model is self.model), None)
            return do(*bound, *rest) if innermost is self else None

        return hook

    def _begin(self, args: tuple, kwargs: Mapping[str, Any]) -> None:
        ids_BS = kwargs.get("input_ids", args[0] if args else None)
        if ids_BS is None:
            raise ValueError("The model was called without input_ids, so visual tokens cannot be told from text; pass input_ids.")
        mask_BS = _mask(kwargs.get("attention_mask"), ids_BS)
        cache = kwargs.get("cache", kwargs.get("past_key_values"))
        decode = ids_BS.shape[1] == 1 and cache is not None and cache.get_seq_length() > 0
        views = {} if decode else self._views(kwargs, ids_BS)
        tokens = lay_out(ids_BS.cpu().numpy(), mask_BS.cpu().numpy(), self.anatomy, views)

        def put(array: Any) -> Tensor:
            return torch.from_numpy(array).to(ids_BS.device)

        self._pass = ForwardPass(
            phase="decode" if decode else "prefill",
            tokens=tokens,
            visual_T=put(tokens.visual_T),
            valid_T=put(tokens.valid_T),
            image_T=put(tokens.image_T),
            entropy_embedding_T=torch.full((len(tokens),), torch.nan, device=ids_BS.device),
        )

    def _views(self, kwargs: Mapping[str, Any], ids_BS: Tensor) -> Views:
        """Views from the caller's inputs, else from the call itself, else from the vision tower that ran before it."""
        known = (self.anatomy, self.recording.processor, self.sizes)
        found = views_of(self._inputs, *known) or views_of(kwargs, *known)
        present = [token for token in self.anatomy.visual_tokens if bool((ids_BS == token).any())]
        if not found and len(self._seen) == len(present) == 1:  # of two calls it is not known which token is whose
            return {present[0]: unplaced(self._seen[0]) if self.anatomy.family.padded else self._seen[0]}
        return found

    def _end(self, args: tuple, output: Any) -> None:
        if self._pass is not None:
            self.recording.add(self._pass)
        self._pass, self._seen = None, []

    def _see_grids(self, args: tuple, kwargs: Mapping[str, Any]) -> None:
        grid_I3 = kwargs.get("grid_thw", args[1] if len(args) > 1 else None)
        if grid_I3 is not None:
            self._seen = [*self._seen, grids_of(grid_I3, self.anatomy)]

    def _see_embeddings(self, args: tuple, kwargs: Mapping[str, Any]) -> None:
        embeds_BSD = kwargs.get("inputs_embeds")
        if self._pass is not None and self._pass.phase == "prefill" and embeds_BSD is not None:
            self._pass.entropy_embedding_T = _visual_entropy(embeds_BSD.flatten(0, 1), self._pass.visual_T.to(embeds_BSD.device))

    def _see_router(self, args: tuple, output: Any) -> None:
        if not isinstance(output, tuple) or len(output) < 3 or output[0].shape[-1] != self.anatomy.num_experts:
            raise ValueError(
                f"The router of {type(self.model).__name__} does not return (scores of {self.anatomy.num_experts} experts, "
                "weights, expert ids); this model is not supported."
            )
        self._first_TN = output[0].flatten(0, -2)

    def _before_experts(self, number: int, layer: MoeLayer, args: tuple) -> tuple | None:
        if self._pass is None or self._first_TN is None:
            raise RuntimeError("A MoE layer was called outside the model's forward; call the model that apply was given.")
        if self._on_layer is not None:
            self._on_layer(number, len(self.anatomy.layers), self._pass.phase)
        if self._pass.phase == "decode" and self._policy.phase != "all":
            return None
        hidden_TD, expert_TK, weight_TK = args
        if len(expert_TK) != len(self._pass.tokens):
            raise ValueError(f"Layer {layer.index} was given {len(expert_TK)} of {len(self._pass.tokens)} tokens; this model is not supported.")
        record = self._decide(layer, hidden_TD, expert_TK, weight_TK)
        self._pass.layers.append(record)
        if self._policy.overflow == "none":
            return None
        weight_TC = self._scaled(layer, record, weight_TK)
        return hidden_TD, record.decision.expert_TC.to(expert_TK.dtype), weight_TC.to(weight_TK.dtype)

    @torch.no_grad()
    def _decide(self, layer: MoeLayer, hidden_TD: Tensor, expert_TK: Tensor, weight_TK: Tensor) -> LayerRecord:
        """Return the record of one layer with the policy's decision, all in float32; the clock covers what serving needs."""
        at, first_TN, self._first_TN = self._pass, self._first_TN, None
        weight_TK, device = weight_TK.detach(), first_TN.device  # layers of one model may lie on several
        visual_T, valid_T = at.visual_T.to(device), at.valid_T.to(device)
        scale_N = self._scale(layer)
        if scale_N is not None:
            weight_TK = weight_TK.float() / scale_N[expert_TK]
        if self.recording.reading is None:
            self.recording.reading = read_router(first_TN, weight_TK, expert_TK, valid_T, declared=self.anatomy.family.scoring)
        reading = self.recording.reading
        modality_N = self._modality[layer.index].to(device)
        entropy_T = _visual_entropy(hidden_TD, visual_T)
        with Stopwatch(device) as clock:
            scores_TN, weight_TK, expert_TK = SCORINGS[reading.scoring](first_TN), weight_TK.float(), expert_TK.long()
            decision = schedule(
                scores_TN,
                expert_TK,
                weight_TK,
                at.weights(self._policy, entropy_T).to(device),
                visual_T,
                valid_T,
                policy=self._policy,
                ep_size=self._ep_size,
                modality_N=modality_N,
                router_normalizes=reading.normalizes,
            )
        return LayerRecord(layer.index, scores_TN, expert_TK, weight_TK, entropy_T, modality_N, decision, {"schedule": clock})

    def _scaled(self, layer: MoeLayer, record: LayerRecord, weight_TK: Tensor) -> Tensor:
        """Return the decided weights times the scale of the expert that executes the pair; the router's own bits where unchanged."""
        decision, scale_N = record.decision, self._scale(layer)
        if scale_N is None:
            return decision.weight_TC
        weight_TC = decision.weight_TC * torch.cat([scale_N, scale_N.new_zeros(1)])[decision.expert_TC]
        slots = slice(0, weight_TK.shape[1])
        same_TK = (decision.expert_TC[:, slots] == record.expert_TK) & (decision.weight_TC[:, slots] == record.weight_TK)
        weight_TC[:, slots] = torch.where(same_TK, weight_TK.float(), weight_TC[:, slots])
        return weight_TC

    def _scale(self, layer: MoeLayer) -> Tensor | None:
        name = self.anatomy.family.weight_scale
        return None if name is None else getattr(layer.router, name).detach().float()


def _sessions() -> list[_Session]:
    if not hasattr(_entered, "sessions"):
        _entered.sessions = []
    return _entered.sessions


def _mask(attention_mask: Any, ids_BS: Tensor) -> Tensor:
    """Return True for tokens that are not padding [B, S]; raises ValueError on a mask that does not say."""
    if attention_mask is None:
        return torch.ones_like(ids_BS, dtype=torch.bool)
    if not torch.is_tensor(attention_mask) or attention_mask.ndim != 2:
        raise ValueError("The attention mask is not [batch, tokens], so padding cannot be told; use a dynamic cache and a 2-d mask.")
    return attention_mask[:, -ids_BS.shape[1] :].bool()


def _visual_entropy(feature_TD: Tensor, visual_T: Tensor) -> Tensor:
    """Return the entropy [T] of visual tokens' features in float32 nats, NaN elsewhere."""
    entropy_T = torch.full((len(visual_T),), torch.nan, device=feature_TD.device)
    entropy_T[visual_T] = feature_entropy(feature_TD[visual_T]).float()
    return entropy_T
