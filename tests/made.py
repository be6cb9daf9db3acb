"""Synthetic traces for tests: random scores, an image's worth of tokens, and decisions of the real core."""

import io
from dataclasses import replace

import numpy as np
from PIL import Image

from macs.config import Policy
from macs.core import Assignment
from macs.trace import LayerTrace, Tokens, Trace


def made_trace(policy: Policy, *, rows=6, columns=8, words=12, padding=2, layers=3, experts=16, top_k=2, ep_size=4, seed=0) -> Trace:
    """Return a trace with ``padding``, then half the words, the image, the other half; skewed router scores."""
    rng = np.random.default_rng(seed)
    cells = rows * columns
    count = padding + words + cells
    start = padding + words // 2
    visual_T = np.zeros(count, bool)
    visual_T[start : start + cells] = True
    position_T2 = np.full((count, 2), -1)
    position_T2[visual_T] = np.stack(np.divmod(np.arange(cells), columns), 1)
    cell_T4 = np.full((count, 4), np.nan, np.float32)
    row, column = position_T2[visual_T].T
    cell_T4[visual_T] = np.stack([column / columns, row / rows, (column + 1) / columns, (row + 1) / rows], 1)
    tokens = Tokens(
        id_T=np.arange(count),
        text_T=tuple("" if v else f"w{i}" for i, v in enumerate(visual_T)),
        visual_T=visual_T,
        valid_T=np.arange(count) >= padding,
        image_T=np.where(visual_T, 0, -1),
        sequence_T=np.zeros(count, np.int64),
        cell_T4=cell_T4,
        position_T2=position_T2,
    )
    blank = Trace(
        policy=policy,
        ep_size=ep_size,
        router_normalizes=True,
        tokens=tokens,
        layers=tuple(_layer(i, rng, tokens, experts, top_k) for i in range(layers)),
        entropy_first_T=_entropy(rng, visual_T),
        entropy_embedding_T=_entropy(rng, visual_T),
        prompt="How many?",
        answer="three",
        images=(),
        seconds={"prefill": 0.25, "decode": 0.5, "total": 0.75},
        about={"model": "synthetic", "source": "synthetic"},
    )
    return blank.reschedule(policy)


def _entropy(rng, visual_T):
    return np.where(visual_T, rng.normal(4, 0.3, len(visual_T)), np.nan).astype(np.float32)


def _layer(index, rng, tokens, experts, top_k) -> LayerTrace:
    logits = rng.normal(size=(len(tokens), experts)) + np.where(tokens.visual_T[:, None], 2, 0) * rng.normal(size=experts)
    scores_TN = np.exp(logits).astype(np.float32)
    scores_TN /= scores_TN.sum(1, keepdims=True)
    expert_TK = np.argsort(-scores_TN, 1, kind="stable")[:, :top_k]
    weight_TK = np.take_along_axis(scores_TN, expert_TK, 1)
    weight_TK /= weight_TK.sum(1, keepdims=True)
    nothing = Assignment(*[np.zeros(0)] * 10)
    modality_N = rng.integers(-1, 2, experts).astype(np.int8)
    return LayerTrace(index, scores_TN, expert_TK, weight_TK, _entropy(rng, tokens.visual_T), modality_N, nothing)


def made_picture(trace: Trace) -> Trace:
    """Return the trace with a plain picture of the shape of its grid."""
    rows, columns = trace.grids[0]
    buffer = io.BytesIO()
    Image.new("RGB", (10 * columns, 10 * rows), "white").save(buffer, "PNG")
    return replace(trace, images=(buffer.getvalue(),))
