"""What an engine is: the interface behind which one process, or G real ranks, run the model."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Protocol

import numpy as np
from PIL.Image import Image

from macs.config import Policy
from macs.trace import Trace

DEMO_MODEL = Path(__file__).resolve().parents[2] / "assets" / "demo_model"  # the embedded model, in a checkout of the repository
CALIBRATION_SET = DEMO_MODEL.parent / "calibration"  # prompts and pictures for a model that has no set of its own
RESULTS = DEMO_MODEL.parent / "results"  # what the studies measured on it
EXAMPLES = DEMO_MODEL.parent / "examples"  # its pictures, prompts and recorded runs


@dataclass(frozen=True)
class EngineInfo:
    """What is known of a loaded model, for the page's header and for checks before a run."""

    model: str  # id or folder name as the user gave it
    parameters: int
    num_layers: int  # MoE layers
    num_experts: int
    top_k: int
    ep_size: int  # default number of ranks
    ep_sizes: tuple[int, ...]  # numbers of ranks that divide the experts
    measured: bool  # True when real ranks execute the experts and their times are clocked
    device: str
    dtype: str
    calibrated: bool
    max_visual_tokens: int
    max_prompt_tokens: int
    notices: tuple[str, ...] = ()  # plain sentences a user must know ("trained on drawings", "not calibrated")
    lent: bool = False  # True on ZeroGPU: a GPU is there only during a run

    @property
    def found(self) -> str:
        """Say in one sentence what the model runs on, and so what ranks are."""
        if self.measured:
            return f"Runs on {self.device}: each rank is a process with its share of the experts, and its times are measured."
        if self.lent:
            return "Runs on ZeroGPU: each run is lent one GPU, so ranks are placement and speed-up is modelled."
        kind = "GPU" if self.device.startswith("cuda") else "CPU"
        return f"Runs on the {kind} in one process: ranks are placement and speed-up is modelled."


@dataclass(frozen=True)
class Request:
    """One input: a prompt, pictures or the frames of a video (PIL, any mode) or neither, and how long an answer may be."""

    prompt: str
    image: Image | None = None
    max_new_tokens: int = 24
    more: tuple[Image, ...] = ()  # pictures after the first
    frames: tuple[Image, ...] = ()
    fps: float = 1.0  # frames a second

    @property
    def pictures(self) -> tuple[Image, ...]:
        """Return all pictures, without the frames."""
        return (() if self.image is None else (self.image,)) + self.more

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt", self.prompt.encode("utf-8", "replace").decode())  # no file and no page can hold a lone surrogate


@dataclass(frozen=True)
class Progress:
    """Where a run stands: phase is ``encode``, ``prefill`` or ``decode``; layer counts from 0."""

    policy: str
    phase: str
    layer: int = 0
    layers: int = 0
    policy_index: int = 0
    policies: int = 1


class Stopped(Exception):
    """The user stopped the run; nothing of it is kept."""


class EngineFailure(RuntimeError):
    """The engine broke, not the input: one sentence that says what happened and how to go on; the next run starts afresh."""


@dataclass(frozen=True)
class Hooks:
    """How a caller watches and stops a run."""

    progress: Callable[[Progress], None] = lambda _: None
    stop: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class Run:
    """What one run returns: its trace, and what a later run needs to measure its distance from it."""

    trace: Trace
    answer_A: tuple[int, ...]  # ids of the answer's tokens, end token included
    logprob_AV: np.ndarray  # float32 next-token log-probabilities where each of them was chosen


class Engine(Protocol):
    """Run requests under policies; one run at a time, safe to call from several threads."""

    info: EngineInfo

    def run(self, request: Request, policy: Policy, *, ep_size: int | None = None, reference: Run | None = None, hooks: Hooks = Hooks()) -> Run:
        """Return one run; ``reference`` is vanilla's run of the same request, from which KL is measured.

        Raises ValueError with one plain sentence on bad input, Stopped when the caller stopped it.
        """
        ...

    def close(self) -> None:
        """Free the model; ends ranks that this engine started."""
        ...
