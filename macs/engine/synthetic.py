"""``python -m macs synthetic``: a made-up trace of any size, labelled so, to see the page with a model that does not fit here."""

from __future__ import annotations

import argparse
import io

import numpy as np
from PIL import Image

from macs.config import check_ep_size, preset
from macs.core import Assignment
from macs.trace import LayerTrace, Tokens, Trace
from macs.trace_file import save_trace

WORDS = 60  # text tokens, half of them before the picture


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument("--out", required=True, help="file to write the trace to (.npz)")
    for name, value in (("layers", 48), ("experts", 128), ("top-k", 8), ("tokens", 1500), ("ep-size", 8), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--gamma", type=float, default=1.0)


def main(args: argparse.Namespace) -> int:
    """Write the trace; raises ValueError if the sizes do not fit together."""
    if min(args.layers, args.experts, args.top_k) < 1 or args.tokens <= WORDS or args.top_k > args.experts:
        raise ValueError(f"Use layers, experts and top-k of 1 or more, top-k up to experts, and more than {WORDS} tokens.")
    trace = synthetic(args.layers, args.experts, args.top_k, args.tokens, check_ep_size(args.ep_size, args.experts), seed=args.seed)
    save_trace(trace.reschedule(preset("macs", gamma=args.gamma)), args.out)
    print(f"{args.out}: {args.layers} layers of {args.experts} experts, {len(trace.tokens)} tokens, synthetic")
    return 0


def synthetic(layers: int, experts: int, top_k: int, tokens: int, ep_size: int, *, seed: int = 0) -> Trace:
    """Return a vanilla trace with skewed random router scores; patches in a near-square grid between two halves of words."""
    rng = np.random.default_rng(seed)
    columns = max(1, round((tokens - WORDS) ** 0.5))
    rows = (tokens - WORDS) // columns
    described = _tokens(rows, columns)
    entropy_T = np.where(described.visual_T, rng.normal(6.0, 0.4, len(described)), np.nan).astype(np.float32)
    trace = Trace(
        policy=preset("vanilla"),
        ep_size=ep_size,
        router_normalizes=True,
        tokens=described,
        layers=tuple(_layer(i, rng, described, experts, top_k, entropy_T) for i in range(layers)),
        entropy_first_T=entropy_T,
        entropy_embedding_T=entropy_T,
        prompt="Synthetic scores: no model ran.",
        answer="",
        calibrated=True,
        images=(_picture(entropy_T[described.visual_T].reshape(rows, columns)),),
        about={"model": f"synthetic {layers}×{experts}", "source": "synthetic", "times": "none"},
    )
    return trace.reschedule(trace.policy)


def _tokens(rows: int, columns: int) -> Tokens:
    count, start = rows * columns + WORDS, WORDS // 2
    visual_T = np.zeros(count, bool)
    visual_T[start : start + rows * columns] = True
    position_T2, cell_T4 = np.full((count, 2), -1), np.full((count, 4), np.nan, np.float32)
    row_P, column_P = np.divmod(np.arange(rows * columns), columns)
    position_T2[visual_T] = np.stack([row_P, column_P], 1)
    cell_T4[visual_T] = np.stack([column_P / columns, row_P / rows, (column_P + 1) / columns, (row_P + 1) / rows], 1)
    return Tokens(
        id_T=np.arange(count),
        text_T=tuple("" if visual else f"word{i}" for i, visual in enumerate(visual_T)),
        visual_T=visual_T,
        valid_T=np.ones(count, bool),
        image_T=np.where(visual_T, 0, -1),
        sequence_T=np.zeros(count, np.int64),
        cell_T4=cell_T4,
        position_T2=position_T2,
    )


def _layer(index: int, rng: np.random.Generator, tokens: Tokens, experts: int, top_k: int, entropy_T: np.ndarray) -> LayerTrace:
    liked_N, liked_by_patches_N = rng.normal(0, 0.5, experts), rng.normal(0, 1.0, experts)
    logit_TN = rng.normal(size=(len(tokens), experts)) + liked_N + tokens.visual_T[:, None] * liked_by_patches_N
    scores_TN = np.exp(logit_TN - logit_TN.max(1, keepdims=True)).astype(np.float32)
    scores_TN /= scores_TN.sum(1, keepdims=True)
    expert_TK = np.argsort(-scores_TN, 1, kind="stable")[:, :top_k]
    weight_TK = np.take_along_axis(scores_TN, expert_TK, 1)
    modality_N = np.sign(np.where(np.abs(liked_by_patches_N) > 0.7, liked_by_patches_N, 0)).astype(np.int8)
    undecided = Assignment(*[np.zeros(0)] * 10)
    return LayerTrace(index, scores_TN, expert_TK, weight_TK / weight_TK.sum(1, keepdims=True), entropy_T, modality_N, undecided)


def _picture(entropy_RC: np.ndarray) -> bytes:
    shade_RC = 255 * (entropy_RC - entropy_RC.min()) / max(float(np.ptp(entropy_RC)), 1e-9)
    small = Image.fromarray(shade_RC.astype(np.uint8)).convert("RGB")
    buffer = io.BytesIO()
    small.resize((small.width * 16, small.height * 16), Image.Resampling.BICUBIC).save(buffer, "PNG")
    return buffer.getvalue()
