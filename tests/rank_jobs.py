"""Functions that tests run on ranks, and a checkpoint that ranks can load. Ranks import this module by name."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh

from macs.core import schedule
from macs.engine import member
from macs.model import apply
from macs.model.anatomy import dissect
from macs.model.parallel import MacsAllToAll, clocked
from tests import tiny


def save_published(model: Any, folder: Path) -> Path:
    """Write a Qwen3-VL-MoE as published checkpoints hold it: experts as [N, in, out], which ranks need to load."""
    model.config.save_pretrained(folder)
    model.generation_config.eos_token_id = 9999  # answers have the length that was asked for
    model.generation_config.save_pretrained(folder)
    tiny.processor().save_pretrained(folder)
    state = {name: value.transpose(1, 2).contiguous() if ".experts." in name else value for name, value in model.state_dict().items()}
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    return folder


def total(rank, value: float) -> float:
    """An all-reduce, to see that ranks talk."""
    tensor = torch.tensor([value + rank.index])
    dist.all_reduce(tensor)
    return tensor.item()


def _model(rank) -> Any:
    return rank.loaded.loaded.model


def forward(rank, batch: dict, policy: str, fields: dict, steer: tuple[tuple[int, ...], int] | None = None) -> tuple:
    """Logits, decisions and times of one forward pass on this rank's share of the engine's model."""
    with clocked(_model(rank)) as records:
        logits, trace = run_model(_model(rank), batch, policy, fields, rank.size, steer)
    return logits, trace, [record.read() for record in records]


def run_model(model, batch: dict, policy: str, fields: dict, ep_size: int, steer: tuple[tuple[int, ...], int] | None = None) -> tuple:
    """The same for a model of one process; ``steer`` sends every token to these experts first, of ``top_k`` in all."""
    with torch.no_grad(), ExitStack() as stack:
        if steer:
            for layer in dissect(model).layers:
                stack.callback(layer.router.register_forward_hook(_steering(*steer)).remove)
        recording = stack.enter_context(apply(model, policy, ep_size=ep_size, **fields))
        logits = model(**batch).logits
    return logits, recording.trace


def _steering(experts: tuple[int, ...], top_k: int):
    def hook(router, args, output):
        bias_N = torch.zeros(output[0].shape[-1])
        bias_N[list(experts)] = 50.0
        logits_TN = output[0] + bias_N
        weight_TK, expert_TK = logits_TN.softmax(-1).topk(top_k, -1)
        return logits_TN, weight_TK / weight_TK.sum(-1, keepdim=True), expert_TK

    return hook


def steered_answer(rank, batch: dict, experts: tuple[int, ...], new_tokens: int) -> list[int]:
    """Greedy ids with every token of every step sent to ``experts`` alone."""
    return answer(_model(rank), batch, rank.size, experts, new_tokens)


def answer(model, batch: dict, ep_size: int, experts: tuple[int, ...], new_tokens: int) -> list[int]:
    with ExitStack() as stack:
        for layer in dissect(model).layers:
            stack.callback(layer.router.register_forward_hook(_steering(experts, len(experts))).remove)
        stack.enter_context(apply(model, "macs", ep_size=ep_size, gamma=1.0, phase="all"))
        return model.generate(**batch, do_sample=False, max_new_tokens=new_tokens, eos_token_id=-1)[0].tolist()


def rows_sent(rank, batch: dict, policy: str, fields: dict) -> list[tuple[int, ...]]:
    """Rows of hidden states that this rank hands to each all-to-all of a forward pass."""
    sent, send = [], dist.all_to_all_single

    def counting(output, input, *sizes, **rest):
        if input.is_floating_point():
            sent.append(len(input))
        return send(output, input, *sizes, **rest)

    dist.all_to_all_single = counting
    try:
        run_model(_model(rank), batch, policy, fields, rank.size)
    finally:
        dist.all_to_all_single = send
    return sent


def data_parallel(rank, hidden_GTD, scores_GTN, policy) -> tuple:
    """Token exchange between ranks that each hold their own batch, scheduled by each rank on its own."""
    experts = dissect(tiny.qwen()).layers[0].experts
    count = experts.num_experts // rank.size
    mine = slice(rank.index * count, (rank.index + 1) * count)
    experts.gate_up_proj.data, experts.down_proj.data = experts.gate_up_proj.data[mine], experts.down_proj.data[mine]
    experts.num_experts, experts._is_expert_parallel = count, True
    mesh = init_device_mesh("cpu", (1, rank.size), mesh_dim_names=("tp", "ep"))
    mesh_tp = init_device_mesh("cpu", (rank.size, 1), mesh_dim_names=("dp", "tp"))["tp"]
    parallel = MacsAllToAll(experts, mesh["ep"], mesh_tp)
    decision = own_schedule(scores_GTN[rank.index], policy, rank.size)
    return parallel(hidden_GTD[rank.index], decision.expert_TC, decision.weight_TC), decision


def own_schedule(scores_TN: torch.Tensor, policy, ep_size: int):
    """The schedule of one batch of text tokens."""
    weight_TK, expert_TK = scores_TN.topk(3, -1)
    ones_T = torch.ones(len(scores_TN))
    no_T, yes_T = torch.zeros(len(scores_TN), dtype=torch.bool), torch.ones(len(scores_TN), dtype=torch.bool)
    return schedule(scores_TN, expert_TK, weight_TK / weight_TK.sum(-1, keepdim=True), ones_T, no_T, yes_T, policy=policy, ep_size=ep_size)


def break_last_layer(rank, which: int) -> None:
    """Let the model of one rank raise when it reaches its last layer."""

    def hook(*_):
        raise RuntimeError("made to fail\nsecond line")

    if rank.index == which:
        dissect(_model(rank)).layers[-1].experts.register_forward_pre_hook(hook)


def hang(rank, which: int) -> float:
    """An all-reduce that one rank never reaches."""
    if rank.index == which:
        time.sleep(600)
    return total(rank, 0.0)


def ping(rank) -> float:
    """The offset that would be found between the clocks of two hosts."""
    return member._ping(rank, 1)
