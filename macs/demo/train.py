"""Trains the embedded model: one reproducible, resumable command on a CPU or a CUDA device."""

import math
import os
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import distributed as dist
from torch import nn
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor

from .attention import use_packed_attention
from .build import build_config, build_model, build_processor, build_tokenizer, save_model
from .losses import by_family, lesson_loss, losses, new_heads
from .optimizer import Optimizer, fast_dtype
from .packing import VALIDATION, Batches, Mix, Packer, draw_batch
from .run_log import Log


TRAINING_FOLDER, HEADS_FILE = "demo_training", "heads.safetensors"


@dataclass(frozen=True)
class Settings:
    """Everything that decides a training run; a leg goes on from the checkpoint in its folder."""

    seed: int = 0
    steps: int = 3_000
    images: int = 24
    slots: int = 4
    small_share: float = 0.6
    lessons: int = 1_200
    rate: float = 2e-3
    warmup: int = 100
    decay: int = 900
    weight_decay: float = 0.1
    dense: float = 1.0
    balance: float = 3e-4
    average: float = 0.99
    processes: int = 2
    workers: int = 0
    device: str = "cpu"


def rate_at(settings: Settings, step: int) -> float:
    """Learning rate: linear warm-up, constant, then linear decay to 2 % over the last `decay` steps."""
    warm = min(1.0, (step + 1) / settings.warmup)
    left = (settings.steps - step) / max(1, settings.decay)
    return settings.rate * warm * min(1.0, max(0.02, left))


@torch.no_grad()
def validate(run: "Run", packer: Packer, settings: Settings, batches: int = 4) -> dict[str, float]:
    """Exact match per family on the validation split (full-size scenes, greedy)."""
    score: dict = {}
    for index in range(batches):
        batch = to_device(draw_batch(packer, Mix(small_share=0.0), VALIDATION, index), settings.device)
        with mixed_precision(settings.device):
            _, facts = losses(run.model, run.heads, batch, settings.dense, settings.balance)
        by_family(facts["exact"], batch["family"], score)
    return {name: round(right / max(1, asked), 3) for name, (right, asked) in score.items()}


def mixed_precision(device: str) -> torch.autocast:
    """Autocast to bfloat16 where that is the fast type."""
    return torch.autocast(device, torch.bfloat16, enabled=fast_dtype(device) is torch.bfloat16)


def to_device(batch: dict, device: str) -> dict:
    """The batch's tensors on the device."""
    return {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}


@dataclass
class Run:
    """A training run under way: everything a checkpoint holds."""

    model: nn.Module
    heads: nn.ModuleDict
    average: dict[str, torch.Tensor]
    optimizer: Optimizer
    processor: object
    step: int = 0
    seconds: float = 0.0


def start(settings: Settings, folder: Path, weights: Path | None) -> Run:
    """A new run (from `weights` when given), or the one whose checkpoint lies in `folder`."""
    processor = AutoProcessor.from_pretrained(folder / "tokenizer")
    if weights is None:
        own = (folder / "config.json").exists()
        config = AutoConfig.from_pretrained(folder) if own else build_config(processor.tokenizer)
        model = build_model(config, settings.seed)
    else:
        model = AutoModelForImageTextToText.from_pretrained(
            weights, dtype=torch.float32, experts_implementation="grouped_mm"
        )
    use_packed_attention(model)
    torch.manual_seed(settings.seed)
    heads = new_heads(model.config.text_config.hidden_size)
    if weights is not None and (weights.parent / TRAINING_FOLDER / HEADS_FILE).exists():
        heads.load_state_dict(load_file(weights.parent / TRAINING_FOLDER / HEADS_FILE))
    model.to(settings.device).train(), heads.to(settings.device)
    run = Run(model, heads, {}, Optimizer(model, heads, settings.weight_decay), processor)
    checkpoint = folder / "checkpoint.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint, map_location=settings.device, weights_only=True)
        model.load_state_dict(saved["model"]), heads.load_state_dict(saved["heads"])
        run.optimizer.load_state_dict(saved["optimizer"])
        run.average, run.step, run.seconds = saved["average"], saved["step"], saved["seconds"]
    run.average = run.average or {n: p.detach().clone() for n, p in model.named_parameters()}
    return run


def save_checkpoint(run: Run, folder: Path) -> None:
    """Writes the checkpoint in one step, so that a killed run leaves the last whole one."""
    state = {"model": run.model.state_dict(), "heads": run.heads.state_dict(), "optimizer": run.optimizer.state_dict(),
             "average": run.average, "step": run.step, "seconds": run.seconds}  # fmt: skip
    torch.save(state, folder / "checkpoint.tmp")
    (folder / "checkpoint.tmp").replace(folder / "checkpoint.pt")


def average_gradients(parameters: list[nn.Parameter], processes: int) -> None:
    """Mean of the gradients over processes, in one message."""
    flat = torch.cat([p.grad.reshape(-1) for p in parameters])
    dist.all_reduce(flat)
    flat /= processes
    for p, part in zip(parameters, flat.split([p.numel() for p in parameters])):
        p.grad.copy_(part.view_as(p))


def train_step(run: Run, batch: dict, settings: Settings) -> dict:
    """One optimizer step and one step of the averaged weights."""
    run.optimizer.set_rate(rate_at(settings, run.step))
    with mixed_precision(settings.device):
        if len(batch["answer_at"]):
            loss, facts = losses(run.model, run.heads, batch, settings.dense, settings.balance)
        else:
            loss, facts = lesson_loss(run.model, run.heads, batch, settings.balance)
    run.optimizer.zero_grad()
    loss.backward()
    parameters = [p for p in (*run.model.parameters(), *run.heads.parameters()) if p.grad is not None]
    if settings.processes > 1:
        average_gradients(parameters, settings.processes)
    nn.utils.clip_grad_norm_(parameters, 1.0)
    run.optimizer.step()
    run.step += 1
    keep = min(settings.average, run.step / (run.step + 20))
    names, parameters = zip(*run.model.named_parameters())
    torch._foreach_lerp_([run.average[n] for n in names], [p.detach() for p in parameters], 1 - keep)
    return facts


def train(settings: Settings, folder: Path, weights: Path | None = None, minutes: float = math.inf) -> None:
    """Trains to `settings.steps` or for `minutes`, logging a JSON line every 25 steps; checkpoints every 250.

    With several processes, each computes a share of every batch on one thread and gradients are averaged once a
    step: on a machine shared with other work this loses far less than threads that wait for each other in every
    operation.
    """
    if settings.device != "cpu" and settings.processes != 1:
        raise ValueError(
            f"{settings.processes} processes share a CPU only; give --processes 1 with --device {settings.device}"
        )
    if settings.images % settings.processes:
        raise ValueError(f"{settings.images} images do not divide by {settings.processes} processes; give a multiple")
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "tokenizer").exists():
        processor = AutoProcessor.from_pretrained(weights) if weights else build_processor(build_tokenizer())
        processor.save_pretrained(folder / "tokenizer")
    arguments = (settings, folder, weights, minutes)
    if settings.processes == 1:
        try:
            _train_part(0, *arguments)
        finally:
            torch.set_flush_denormal(False)  # the caller's process computes on
    else:
        meeting = folder / f"meeting-{os.getpid()}"
        meeting.unlink(missing_ok=True)
        torch.multiprocessing.spawn(_train_part, arguments, settings.processes)
        meeting.unlink(missing_ok=True)


def _train_part(part: int, settings: Settings, folder: Path, weights: Path | None, minutes: float) -> None:
    torch.set_flush_denormal(True)  # subnormal optimizer states make a step several times slower on a CPU
    if settings.processes > 1:
        torch.set_num_threads(1)
        meeting = f"file://{(folder / f'meeting-{os.getppid()}').resolve()}"
        dist.init_process_group("gloo", init_method=meeting, rank=part, world_size=settings.processes)
    run = start(settings, folder, weights)
    packer = Packer(run.processor.tokenizer)
    mix = Mix(settings.images // settings.processes, max(1, settings.images // 12 // settings.processes),
              settings.slots, settings.small_share)  # fmt: skip
    loader = torch.utils.data.DataLoader(
        Batches(packer, mix, run.step, settings.lessons, part, settings.processes), batch_size=None, num_workers=settings.workers,
        prefetch_factor=4 if settings.workers else None, pin_memory=settings.device == "cuda",
    )  # fmt: skip
    begin = time.perf_counter()
    log = None
    if part == 0:
        log = Log(folder, asdict(settings), run.step)
        run.model.config.save_pretrained(folder)
    for batch in loader:
        over = torch.tensor(float(run.step >= settings.steps or time.perf_counter() - begin > minutes * 60))
        if settings.processes > 1:
            dist.all_reduce(over)
        if over:
            break
        batch = to_device(batch, settings.device)
        facts = train_step(run, batch, settings)
        if log is not None:
            log.note(run, facts, batch, rate_at(settings, run.step), settings.images)
            if run.step % 250 == 0:
                save_checkpoint(run, folder)
            if run.step % 250 == 0 and run.step > settings.lessons:
                log.write({"step": run.step, "validation": validate(run, packer, settings)})
    if part == 0:
        save_checkpoint(run, folder)


def export(folder: Path, out: Path) -> int:
    """Writes the averaged weights of the run in `folder` as a transformers checkpoint; returns the run's step.

    The log and the heads of the dense labels, which a later leg starts from, go to a folder `demo_training` beside it.
    """
    if not (folder / "checkpoint.pt").exists():
        raise ValueError(f"{folder} holds no checkpoint.pt; train first")
    saved = torch.load(folder / "checkpoint.pt", map_location="cpu", weights_only=True)
    processor = AutoProcessor.from_pretrained(folder / "tokenizer")
    model = build_model(AutoConfig.from_pretrained(folder), 0)
    model.load_state_dict(saved["model"])
    model.load_state_dict(saved["average"], strict=False)
    save_model(model, processor, out)
    beside = out.parent / TRAINING_FOLDER
    beside.mkdir(exist_ok=True)
    save_file(saved["heads"], beside / HEADS_FILE)
    shutil.copyfile(folder / "log.jsonl", beside / "log.jsonl")
    return saved["step"]
