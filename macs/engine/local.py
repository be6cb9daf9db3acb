"""The engine of one process: the model runs here whole, and ``ep_size`` only says where its experts would live."""

from __future__ import annotations

import threading
from dataclasses import replace

import torch

from macs.config import Policy, check_ep_size
from macs.engine.base import EngineInfo, Hooks, Progress, Request, Run, Stopped
from macs.engine.generation import Generated, Watch, complete, distance, generate, notices, read
from macs.model import Loaded, count_experts, load, read_calibration

DEFAULT_EP_SIZE = 4


class LocalEngine:
    """Loads a model once and runs one request at a time; raises ValueError on a model or a rank count it cannot use."""

    def __init__(
        self,
        name_or_path: str,
        *,
        ep_size: int | None = None,
        dtype: str = "auto",
        device: str | None = None,
        device_map: str | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        if ep_size is not None:
            check_ep_size(ep_size, count_experts(name_or_path, trust_remote_code))  # before any weight is read
        self._loaded = load(name_or_path, dtype=dtype, device=device, device_map=device_map, trust_remote_code=trust_remote_code)
        self._calibration = read_calibration(self._loaded)
        self._lock = threading.Lock()
        self.info = describe(self._loaded, self._calibration is not None)
        if ep_size is not None:
            self.info = replace(self.info, ep_size=ep_size)

    def run(self, request: Request, policy: Policy, *, ep_size: int | None = None, reference: Run | None = None, hooks: Hooks = Hooks()) -> Run:
        """Return one run; see ``macs.engine.base.Engine.run``."""
        ep_size = check_ep_size(self.info.ep_size if ep_size is None else ep_size, self.info.num_experts)
        if hooks.stop.is_set():
            raise Stopped()
        hooks.progress(Progress(policy.preset, "encode"))
        batch = read(self._loaded, request)
        watch = Watch(hooks.progress, hooks.stop.is_set)
        given = {"ep_size": ep_size, "calibration": self._calibration, "watch": watch}

        def along(answer_A: tuple[int, ...]) -> Generated:
            return generate(self._loaded, batch, policy, forced=answer_A, **given)

        with self._lock:
            generated = generate(self._loaded, batch, policy, max_new_tokens=request.max_new_tokens, **given)
            kl = distance(reference, generated, along)
        about = {"times": "measured in one process; ranks are placement", "parameters": self.info.parameters}
        return complete(self._loaded, request, batch, generated, about=about, kl=kl)

    def close(self) -> None:
        """Free the model."""
        self._loaded = None


def describe(loaded: Loaded, calibrated: bool) -> EngineInfo:
    """Return what is known of a model that runs whole in this process."""
    sizes = tuple(g for g in range(1, loaded.num_experts + 1) if loaded.num_experts % g == 0)
    parameter = next(loaded.model.parameters())
    return EngineInfo(
        model=loaded.name,
        parameters=sum(p.numel() for p in loaded.model.parameters()),
        num_layers=loaded.num_layers,
        num_experts=loaded.num_experts,
        top_k=loaded.top_k,
        ep_size=max(g for g in sizes if g <= DEFAULT_EP_SIZE),
        ep_sizes=sizes,
        measured=False,
        device=str(parameter.device),
        dtype=str(parameter.dtype).removeprefix("torch."),
        calibrated=calibrated,
        max_visual_tokens=loaded.max_visual_tokens,
        max_prompt_tokens=loaded.max_prompt_tokens,
        notices=notices(loaded, calibrated),
    )
