"""The engine of one process: the model runs here whole, and ``ep_size`` only says where its experts would live."""

from __future__ import annotations

import datetime
import threading
import time
from dataclasses import replace

import numpy as np
import torch
from transformers import LogitsProcessor, LogitsProcessorList

from macs.config import Policy, check_ep_size
from macs.engine.base import EngineInfo, Hooks, Progress, Request, Run, Stopped
from macs.engine.intake import preview, to_rgb
from macs.model import apply, encode, load, read_calibration

DEFAULT_EP_SIZE = 4


class LocalEngine:
    """Loads a model once and runs one request at a time; raises ValueError on a model or a rank count it cannot use."""

    def __init__(self, name_or_path: str, *, ep_size: int | None = None, dtype: str = "auto", device: str | None = None) -> None:
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self._loaded = load(name_or_path, dtype=dtype, device=device)
        self._calibration = read_calibration(self._loaded)
        self._lock = threading.Lock()
        self.info = _describe(self._loaded, ep_size, self._calibration is not None)

    def run(self, request: Request, policy: Policy, *, ep_size: int | None = None, reference: Run | None = None, hooks: Hooks = Hooks()) -> Run:
        """Return one run; see ``macs.engine.base.Engine.run``."""
        ep_size = check_ep_size(self.info.ep_size if ep_size is None else ep_size, self.info.num_experts)
        image = None if request.image is None else to_rgb(request.image)
        if hooks.stop.is_set():
            raise Stopped()
        hooks.progress(Progress(policy.preset, "encode"))
        batch = encode(self._loaded, request.prompt, image)
        with self._lock:
            start = time.perf_counter()
            trace, answer_A, logprob_AV, marks = self._generate(batch, policy, ep_size, request.max_new_tokens, hooks)
            seconds = {"prefill": marks[0] - start, "decode": marks[-1] - marks[0], "total": time.perf_counter() - start}
            if reference is not None:
                kl = self._distance(reference, batch, policy, ep_size, answer_A, logprob_AV, hooks)
                trace = replace(trace, kl=kl)
        about = dict(trace.about) | {"model": self.info.model, "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")}
        trace = replace(
            trace,
            prompt=request.prompt,
            answer=self._loaded.processor.tokenizer.decode(answer_A, skip_special_tokens=True).strip(),
            images=() if image is None else (preview(image),),
            calibrated=self._calibration is not None,
            seconds=seconds,
            about=about | {"source": "live", "times": "measured in one process; ranks are placement"},
        )
        return Run(trace, answer_A, logprob_AV)

    def close(self) -> None:
        """Free the model."""
        self._loaded = None

    def _generate(self, batch, policy, ep_size, max_new_tokens, hooks, forced=None):
        """Return (trace, answer ids, log-probabilities [A, V], time of each step); greedy, or along ``forced`` ids."""
        steps = _Steps(hooks, forced)

        def on_layer(layer: int, layers: int, phase: str) -> None:
            if hooks.stop.is_set():
                raise Stopped()
            hooks.progress(Progress(policy.preset, phase, layer, layers))

        model = self._loaded.model
        with apply(
            model,
            policy,
            ep_size=ep_size,
            modality=self._calibration,
            processor=self._loaded.processor,
            inputs=batch,
            on_layer=on_layer,
        ) as recording:
            output = model.generate(
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
        answer = tuple(output.sequences[0, batch["input_ids"].shape[1] :].tolist())
        logprob_AV = torch.cat(output.logits).float().log_softmax(-1).cpu().numpy()
        return recording.trace, answer, logprob_AV, steps.marks

    def _distance(self, reference, batch, policy, ep_size, answer_A, logprob_AV, hooks) -> float:
        """Return the mean KL from ``reference`` at its answer's positions, in nats, both read along its own answer."""
        if answer_A != reference.answer_A:
            *_, logprob_AV, _ = self._generate(batch, policy, ep_size, None, hooks, forced=reference.answer_A)
        return mean_kl(reference.logprob_AV, logprob_AV)


class _Steps(LogitsProcessor):
    """Clocks each step, stops on request, and holds the answer to given ids when asked to."""

    def __init__(self, hooks: Hooks, forced: tuple[int, ...] | None) -> None:
        self.marks: list[float] = []
        self._hooks, self._forced = hooks, forced

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        if self._hooks.stop.is_set():
            raise Stopped()
        self._hooks.progress(Progress("", "decode", len(self.marks)))
        self.marks.append(time.perf_counter())
        if self._forced is None:
            return scores
        only = torch.full_like(scores, float("-inf"))
        only[:, self._forced[len(self.marks) - 1]] = 0.0
        return only


def mean_kl(reference_AV: np.ndarray, other_AV: np.ndarray) -> float:
    """Return the mean over A positions of KL(reference ‖ other) in nats, from log-probabilities [A, V]."""
    assert reference_AV.shape == other_AV.shape, (reference_AV.shape, other_AV.shape)
    share = np.exp(reference_AV.astype(np.float64))
    gap = np.where(share > 0, reference_AV.astype(np.float64) - other_AV, 0.0)
    return float(np.maximum((share * gap).sum(-1), 0.0).mean())


def _describe(loaded, ep_size: int | None, calibrated: bool) -> EngineInfo:
    sizes = tuple(g for g in range(1, loaded.num_experts + 1) if loaded.num_experts % g == 0)
    if ep_size is None:
        ep_size = max(g for g in sizes if g <= DEFAULT_EP_SIZE)
    parameter = next(loaded.model.parameters())
    return EngineInfo(
        model=loaded.name,
        parameters=sum(p.numel() for p in loaded.model.parameters()),
        num_layers=loaded.num_layers,
        num_experts=loaded.num_experts,
        top_k=loaded.top_k,
        ep_size=check_ep_size(ep_size, loaded.num_experts),
        ep_sizes=sizes,
        measured=False,
        device=str(parameter.device),
        dtype=str(parameter.dtype).removeprefix("torch."),
        calibrated=calibrated,
        max_visual_tokens=loaded.max_visual_tokens,
        max_prompt_tokens=loaded.max_prompt_tokens,
        notices=loaded.notices if calibrated else (*loaded.notices, "Not calibrated: every expert counts as shared, so capacity is static. Run: python -m macs calibrate"),
    )
