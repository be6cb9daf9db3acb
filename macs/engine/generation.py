"""One generation under one policy: what an engine of one process and every rank of a split model do alike."""

from __future__ import annotations

import datetime
import time
from dataclasses import dataclass, replace
from typing import Any, Callable, Mapping

import numpy as np
import torch
from transformers import LogitsProcessor, LogitsProcessorList

from macs.config import Policy
from macs.engine.base import DEMO_MODEL, Progress, Request, Run, Stopped
from macs.engine.intake import PREVIEW_SIDE, preview, to_rgb
from macs.model import Loaded, apply, encode
from macs.model.views import views_of
from macs.trace import Trace

DRAWINGS = "The embedded model was trained on drawings; its answers about photographs mean nothing."
NOT_CALIBRATED = "Not calibrated: every expert counts as shared, so capacity is static. Run: python -m macs calibrate"


@dataclass(frozen=True)
class Watch:
    """How a generation reports, and how it learns that it must stop; split ranks must all learn it at the same call."""

    progress: Callable[[Progress], None]
    stopping: Callable[[], bool]


@dataclass(frozen=True)
class Generated:
    """What the model did, before prompt, picture and distance are put in."""

    trace: Trace
    answer_A: tuple[int, ...]
    logprob_AV: np.ndarray
    seconds: Mapping[str, float]


def generate(
    loaded: Loaded,
    batch: Mapping[str, Any],
    policy: Policy,
    *,
    ep_size: int,
    calibration: Mapping[int, Any] | None,
    watch: Watch,
    max_new_tokens: int = 0,
    forced: tuple[int, ...] | None = None,
) -> Generated:
    """Generate greedily under ``policy``, or along ``forced`` ids; raises Stopped as soon as the watch says so."""

    def on_layer(layer: int, layers: int, phase: str) -> None:
        if phase == "prefill" and watch.stopping():  # decode steps ask once a step
            raise Stopped()
        watch.progress(Progress(policy.preset, phase, layer, layers))

    steps = _Steps(policy.preset, watch, forced)
    start = time.perf_counter()
    with apply(
        loaded.model, policy, ep_size=ep_size, modality=calibration, processor=loaded.processor, inputs=batch, on_layer=on_layer
    ) as recording:
        output = loaded.model.generate(
            **batch,
            do_sample=False,
            temperature=None,
            top_p=None,
            top_k=None,
            max_new_tokens=len(forced) if forced else max_new_tokens,
            output_logits=True,
            return_dict_in_generate=True,
            logits_processor=LogitsProcessorList([steps]),
        )
    end = time.perf_counter()
    answer_A = tuple(output.sequences[0, batch["input_ids"].shape[1] :].tolist())
    logprob_AV = torch.cat(output.logits).float().log_softmax(-1).cpu().numpy()
    seconds = {"prefill": steps.marks[0] - start, "decode": steps.marks[-1] - steps.marks[0], "total": end - start}
    return Generated(recording.trace, answer_A, logprob_AV, seconds)


class _Steps(LogitsProcessor):
    """Clocks each step, stops on request, and holds the answer to given ids when asked to."""

    def __init__(self, name: str, watch: Watch, forced: tuple[int, ...] | None) -> None:
        self.marks: list[float] = []
        self._name, self._watch, self._forced = name, watch, forced

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        if self._watch.stopping():
            raise Stopped()
        if scores.is_cuda:
            torch.cuda.synchronize(scores.device)  # the step ends when its scores are there
        self._watch.progress(Progress(self._name, "decode", len(self.marks)))
        self.marks.append(time.perf_counter())
        if self._forced is None:
            return scores
        only = torch.full_like(scores, float("-inf"))
        only[:, self._forced[len(self.marks) - 1]] = 0.0
        return only


def read(loaded: Loaded, request: Request) -> Mapping[str, Any]:
    """Return the model's batch for a request; raises ValueError with one sentence on input it cannot take."""
    return encode(loaded, request.prompt, [to_rgb(p) for p in request.pictures], frames=[to_rgb(f) for f in request.frames], fps=request.fps)


def complete(loaded: Loaded, request: Request, batch: Mapping[str, Any], generated: Generated, *, about: Mapping[str, Any], kl: float | None) -> Run:
    """Return the run with the request, the answer's text and what is known of how it ran written into its trace."""
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    facts = {"model": loaded.name, "date": date, "source": "live", "notices": notices(loaded, generated.trace.calibrated)}
    trace = replace(
        generated.trace,
        prompt=request.prompt,
        answer=loaded.processor.tokenizer.decode(generated.answer_A, skip_special_tokens=True).strip(),
        images=_previews(request, loaded, batch),
        seconds=generated.seconds,
        kl=kl,
        about=dict(generated.trace.about) | facts | about,
    )
    return Run(trace, generated.answer_A, generated.logprob_AV)


def _previews(request: Request, loaded: Loaded, batch: Mapping[str, Any]) -> tuple[bytes, ...]:
    """Return the picture behind each view of the trace: tiles are one view, the small whole beside them another, each frame one."""
    given = (*request.pictures, *request.frames)
    views = views_of(batch, loaded.anatomy, loaded.processor, [picture.size for picture in given])
    shown = [view.source for of_token in views.values() for view in of_token if view.starts] or range(len(given))
    side = PREVIEW_SIDE if len(shown) <= 2 else PREVIEW_SIDE // 2  # a trace carries each of them
    copies = {i: preview(to_rgb(given[min(i, len(given) - 1)]), side) for i in set(shown)}  # a last frame may be there twice
    return tuple(copies[i] for i in shown)


def notices(loaded: Loaded, calibrated: bool) -> list[str]:
    """Return the plain sentences that must stand beside whatever this model answers."""
    found = list(loaded.notices)
    if loaded.folder.resolve() == DEMO_MODEL:
        found.append(DRAWINGS)
    return found if calibrated else [*found, NOT_CALIBRATED]


def distance(reference: Run | None, generated: Generated, along: Callable[[tuple[int, ...]], Generated]) -> float | None:
    """Return the mean KL from ``reference`` at its answer's positions, both read along its answer; None without one.

    ``along`` generates again, held to the ids it is given; it is needed only if the answers differ.
    """
    if reference is None:
        return None
    if generated.answer_A != reference.answer_A:
        generated = along(reference.answer_A)
    return mean_kl(reference.logprob_AV, generated.logprob_AV)


def mean_kl(reference_AV: np.ndarray, other_AV: np.ndarray) -> float:
    """Return the mean over A positions of KL(reference ‖ other) in nats, from log-probabilities [A, V]."""
    assert reference_AV.shape == other_AV.shape, (reference_AV.shape, other_AV.shape)
    share = np.exp(reference_AV.astype(np.float64))
    gap = np.where(share > 0, reference_AV.astype(np.float64) - other_AV, 0.0)
    return float(np.maximum((share * gap).sum(-1), 0.0).mean())
