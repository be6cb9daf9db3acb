"""A trace from a routing record: which experts each token went to, and nothing that only the router knew.

Loads, stragglers and the expert map follow from the ids alone. Scores, weights, entropies and modality are NaN or unknown,
the trace says so in ``lacks``, and whatever needs them refuses.
"""

from __future__ import annotations

import numpy as np

from macs.config import VERSION, check_ep_size, preset
from macs.core import KEPT, PADDING, Assignment
from macs.trace import LayerTrace, Tokens, Trace
from macs.trace_file import MAX_EXPERTS
from macs.trace_records import Record

LACKS = ("scores", "weights", "entropies", "modality", "places", "pictures")
MAX_IDS = 2**27  # tokens × layers × slots: 4096 tokens of 48 layers and 8 slots are 1.6 million
DEFAULT_EP_SIZE = 4


def trace_of(record: Record, *, experts: int | None = None, ep_size: int | None = None, name: str = "") -> Trace:
    """Return the vanilla trace of a record, with its experts on ``ep_size`` ranks (default: up to 4).

    ``experts`` of a layer is needed where the record does not say it; ``name`` stands for a model that it does not name.
    Raises ValueError with one sentence on ids that no router gives: out of range, or one expert twice for a token.
    """
    experts = _experts(record, experts)
    sizes = [g for g in range(1, DEFAULT_EP_SIZE + 1) if experts % g == 0]
    ep_size = max(sizes) if ep_size is None else check_ep_size(ep_size, experts)
    if record.expert_TLK.size > MAX_IDS:
        raise ValueError(f"This record has {record.expert_TLK.size:,} expert ids; at most {MAX_IDS:,} are read. Record fewer tokens.")
    expert_TLK, numbers, valid_T = _recorded(record.expert_TLK)
    _check_ids(expert_TLK[valid_T], np.flatnonzero(valid_T), numbers, experts)
    entropy_T = np.full(len(valid_T), np.nan, np.float32)
    layers = tuple(_layer(number, expert_TLK[:, i], valid_T, experts, entropy_T) for i, number in enumerate(numbers))
    notices = list(record.notices)
    if lost := int((~valid_T).sum()):
        notices.append(f"Tokens without recorded routing, left out: {lost}.")
    return Trace(
        policy=preset("vanilla"),
        ep_size=ep_size,
        router_normalizes=False,
        tokens=_tokens(record, valid_T),
        layers=layers,
        entropy_first_T=entropy_T,
        entropy_embedding_T=entropy_T,
        prompt="",
        answer=record.answer,
        about={"model": record.model or name, "source": record.source, "times": "none", "versions": {"macs": VERSION}, "notices": notices},
        lacks=LACKS,
    )


def _experts(record: Record, given: int | None) -> int:
    if given is None and record.experts is None:
        most = int(record.expert_TLK.max())
        raise ValueError(f"This record does not say how many experts a layer has, only that one has the id {most}; give --experts.")
    experts = record.experts if given is None else given
    if not 1 <= experts <= MAX_EXPERTS or (record.experts is not None and experts != record.experts):
        raise ValueError(f"experts is {experts}; use {record.experts or f'1 to {MAX_EXPERTS:,}'}.")
    return experts


def _recorded(expert_TLK: np.ndarray) -> tuple[np.ndarray, list[int], np.ndarray]:
    """Return the ids without what was never written, the numbers of the layers left, and which tokens have ids [T].

    Engines reserve a row for every decoder layer and a fixed number of slots; what no router fills stays -1, or 0 in all
    slots, which no router gives where there are two or more.
    """
    slots_K = (expert_TLK >= 0).any((0, 1))
    expert_TLK = expert_TLK[:, :, : max(int(slots_K.sum()), 1)] if (slots_K[:-1] >= slots_K[1:]).all() else expert_TLK
    blank_TL = (expert_TLK == -1).all(2)
    if expert_TLK.shape[2] > 1:
        blank_TL |= (expert_TLK == 0).all(2)
    numbers = np.flatnonzero(~blank_TL.all(0))
    if not len(numbers):
        raise ValueError("This record holds no expert id at all; the server recorded nothing.")
    return expert_TLK[:, numbers], numbers.tolist(), ~blank_TL[:, numbers].all(1)


def _check_ids(expert_TLK: np.ndarray, token_T: np.ndarray, numbers: list[int], experts: int) -> None:
    wrong_TLK = (expert_TLK < 0) | (expert_TLK >= experts)
    if wrong_TLK.any():
        t, i, k = (int(axis[0]) for axis in np.nonzero(wrong_TLK))
        raise ValueError(f"Token {token_T[t]} has expert {expert_TLK[t, i, k]} in layer {numbers[i]}, but ids go from 0 to {experts - 1}; check --experts.")
    ordered_TLK = np.sort(expert_TLK, 2)
    twice_TL = (ordered_TLK[..., 1:] == ordered_TLK[..., :-1]).any(2)
    if twice_TL.any():
        t, i = (int(axis[0]) for axis in np.nonzero(twice_TL))
        raise ValueError(
            f"Token {token_T[t]} has one expert twice in layer {numbers[i]} ({', '.join(map(str, expert_TLK[t, i]))}), which no router gives; check --layers and --top-k."
        )


def _tokens(record: Record, valid_T: np.ndarray) -> Tokens:
    count, ids_T = len(valid_T), record.token_T
    return Tokens(
        id_T=np.full(count, -1) if ids_T is None else ids_T,
        text_T=tuple(f"[{t}]" for t in range(count)) if ids_T is None else tuple(f"#{token}" for token in ids_T),
        visual_T=np.zeros(count, bool),
        valid_T=valid_T,
        image_T=np.full(count, -1),
        sequence_T=np.zeros(count, np.int64),
        cell_T4=np.full((count, 4), np.nan, np.float32),
        position_T2=np.full((count, 2), -1),
    )


def _layer(number: int, expert_TK: np.ndarray, valid_T: np.ndarray, experts: int, entropy_T: np.ndarray) -> LayerTrace:
    unknown_TK = np.full(expert_TK.shape, np.nan, np.float32)
    unknown_N = np.full(experts, np.nan)
    counted_N = np.bincount(expert_TK[valid_T].ravel(), minlength=experts)
    capacity = max(float(np.ceil(counted_N.sum() / experts - 1e-9)), 1.0)  # C_base at γ = 1 (eq. 3)
    return LayerTrace(
        layer=number,
        scores_TN=np.broadcast_to(np.float32(np.nan), (len(expert_TK), experts)),
        expert_TK=np.where(valid_T[:, None], expert_TK, 0),
        weight_TK=unknown_TK,
        entropy_T=entropy_T,
        modality_N=np.zeros(experts, np.int8),
        decision=Assignment(
            expert_TC=np.where(valid_T[:, None], expert_TK, experts),
            weight_TC=unknown_TK,
            status_TC=np.where(valid_T[:, None], KEPT, PADDING).astype(np.int8) * np.ones(expert_TK.shape, np.int8),
            capacity_N=np.full(experts, capacity),
            visual_ratio=float("nan"),
            token_weight_T=np.full(len(valid_T), np.nan, np.float32),
            tokens_before_N=counted_N,
            tokens_after_N=counted_N,
            effective_before_N=unknown_N,
            effective_after_N=unknown_N,
        ),
    )
