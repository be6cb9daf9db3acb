"""An engine without a model: made-up router scores over the request's own picture, decided by the real scheduler."""

from __future__ import annotations

import time
import zlib
from dataclasses import replace

import numpy as np
from PIL import Image

from macs.config import Policy
from macs.engine.base import EngineInfo, Hooks, Progress, Request, Run, Stopped
from macs.engine.intake import preview
from macs.trace import Trace
from tests.made import made_trace

SIDE = 12  # patches along the longer side
LAYERS = 6


class FakeEngine:
    """Satisfies ``macs.engine.base.Engine``; ``pace`` seconds pass per layer, ``fail`` is raised by the next run."""

    def __init__(self, pace: float = 0.0) -> None:
        self.pace = pace
        self.fail: Exception | None = None
        self.info = EngineInfo("synthetic", 9_700_000, LAYERS, 16, 2, 4, (1, 2, 4, 8, 16), False, "cpu", "float32", True, 1024, 512)

    def run(self, request: Request, policy: Policy, *, ep_size: int | None = None, reference: Run | None = None, hooks: Hooks = Hooks()) -> Run:
        if self.fail is not None:
            raise self.fail
        for layer in range(LAYERS):
            if hooks.stop.is_set():
                raise Stopped()
            hooks.progress(Progress(policy.preset, "prefill", layer, LAYERS))
            time.sleep(self.pace)
        trace = scores_of(request).reschedule(policy, ep_size=ep_size or self.info.ep_size)
        lost = sum(layer.dropped for layer in trace.layers) / sum(layer.pairs for layer in trace.layers)
        kl = None if reference is None else round(lost, 4)
        return Run(replace(trace, policy=policy, answer="two" if lost > 0.3 else "three", kl=kl), (1, 2), np.zeros((2, 4), np.float32))

    def close(self) -> None:
        pass


def scores_of(request: Request) -> Trace:
    """Return the vanilla trace of a request: the same for the same picture and prompt."""
    seed = zlib.crc32(request.prompt.encode())
    images: tuple[bytes, ...] = ()
    rows = columns = 0
    patch_P = np.zeros(0)
    if request.image is not None:
        images = (preview(request.image),)
        width, height = request.image.size
        columns, rows = (max(1, round(SIDE * side / max(width, height))) for side in (width, height))
        grey = np.asarray(request.image.convert("L").resize((columns * 8, rows * 8), Image.Resampling.BOX), float)
        patch_P = grey.reshape(rows, 8, columns, 8).std((1, 3)).flatten()
    trace = made_trace(Policy(**_VANILLA), rows=rows, columns=columns, words=30, padding=0, layers=LAYERS, seed=seed % 1000)
    words = tuple(f"{word} " for word in request.prompt.split())
    text = tuple(words[i % len(words)] if not v else "" for i, v in enumerate(trace.tokens.visual_T))
    entropy_T = np.full(len(trace.tokens), np.nan, np.float32)
    if patch_P.size:
        entropy_T[trace.tokens.visual_T] = 4.6 - 0.5 * (patch_P - patch_P.mean()) / (patch_P.std() + 1e-6)
    return replace(
        trace,
        tokens=replace(trace.tokens, text_T=text),
        entropy_first_T=entropy_T,
        entropy_embedding_T=entropy_T,
        prompt=request.prompt,
        images=images,
        calibrated=True,
        about={"model": "synthetic", "parameters": 9_700_000, "source": "synthetic"},
    )


_VANILLA = {"load": "tokens", "capacity": "static", "overflow": "none", "priority": "score"}
