"""Muon for the weight matrices (momentum whose update is made orthogonal), AdamW for all else.

Orthogonal updates learn about twice as much per step as AdamW here; matrices of one shape are treated in one batch.
"""

import torch
from torch import distributed as dist
from torch import nn

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # quintic Newton–Schulz iteration: singular values go near 1


def fast_dtype(device: str) -> torch.dtype:
    """bfloat16 where the device computes in it; a CPU without such instructions is ten times faster in float32."""
    able = device != "cpu" or any(torch.cpu.get_capabilities().get(name) for name in ("avx512_bf16", "amx_bf16"))
    return torch.bfloat16 if able else torch.float32


def orthogonal(matrix_BMN: torch.Tensor, rounds: int = 5) -> torch.Tensor:
    """The nearest orthogonal matrices, roughly (singular values in 0.7–1.2), in `fast_dtype`."""
    a, b, c = COEFFICIENTS
    x = matrix_BMN.to(fast_dtype(matrix_BMN.device.type))
    tall = x.shape[1] > x.shape[2]
    x = x.transpose(1, 2) if tall else x
    x = x / (x.float().norm(dim=(1, 2), keepdim=True) + 1e-7).to(x.dtype)
    for _ in range(rounds):
        gram = x @ x.transpose(1, 2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.transpose(1, 2) if tall else x).float()


def orthogonal_shared(matrix_BMN: torch.Tensor) -> torch.Tensor:
    """`orthogonal`, each process taking its share of the batch."""
    if not dist.is_initialized():
        return orthogonal(matrix_BMN)
    world, count = dist.get_world_size(), len(matrix_BMN)
    share = -(-count // world)
    mine = matrix_BMN[share * dist.get_rank() :][:share]
    mine = torch.cat([mine, mine.new_zeros(share - len(mine), *mine.shape[1:])])
    parts = [torch.empty(mine.shape) for _ in range(world)]
    dist.all_gather(parts, orthogonal(mine))
    return torch.cat(parts)[:count]


class Optimizer:
    """Muon and AdamW side by side; the learning rate of both is the root mean square of AdamW's update."""

    def __init__(self, model: nn.Module, heads: nn.Module, weight_decay: float, momentum: float = 0.95):
        self.weight_decay, self.momentum, self.rate = weight_decay, momentum, 0.0
        named = [*model.named_parameters(), *heads.named_parameters()]
        inner = [(n, p) for n, p in named if (".layers." in n or ".blocks." in n or "merger" in n) and p.ndim >= 2]
        inner = [(n, p) for n, p in inner if "gate.weight" not in n]
        names = {n for n, _ in inner}
        shapes = sorted({tuple(p.shape[-2:]) for _, p in inner})
        self.matrices = [[p for _, p in inner if tuple(p.shape[-2:]) == shape] for shape in shapes]
        self.moments = [[torch.zeros_like(p) for p in group] for group in self.matrices]
        self.adam = torch.optim.AdamW(
            [p for n, p in named if n not in names], lr=0.0, betas=(0.9, 0.98), weight_decay=0.0, fused=True
        )

    def set_rate(self, rate: float) -> None:
        """Learning rate of the next step."""
        self.rate = rate
        for group in self.adam.param_groups:
            group["lr"] = rate

    def zero_grad(self) -> None:
        """Forget all gradients."""
        self.adam.zero_grad(set_to_none=True)
        for group in self.matrices:
            for p in group:
                p.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """One update of every parameter."""
        self.adam.step()
        for group, moments in zip(self.matrices, self.moments):
            used = [i for i, p in enumerate(group) if p.grad is not None]
            if not used:
                continue
            group, moments = [group[i] for i in used], [moments[i] for i in used]
            grads = [p.grad for p in group]
            torch._foreach_lerp_(moments, grads, 1 - self.momentum)
            ahead = torch._foreach_lerp(grads, moments, self.momentum)
            rows, columns = group[0].shape[-2:]
            stacked = torch.cat([t.reshape(-1, rows, columns) for t in ahead])
            update = orthogonal_shared(stacked) * (0.2 * max(rows, columns) ** 0.5 * self.rate)
            torch._foreach_mul_(group, 1 - self.rate * self.weight_decay)
            parts = update.split([p.numel() // (rows * columns) for p in group])
            torch._foreach_sub_(group, [part.view_as(p) for part, p in zip(parts, group)])

    def state_dict(self) -> dict:
        """Moments and AdamW's state."""
        return {"moments": self.moments, "adam": self.adam.state_dict()}

    def load_state_dict(self, state: dict) -> None:
        """Takes up the state of `state_dict`."""
        for group, saved in zip(self.moments, state["moments"]):
            for mine, theirs in zip(group, saved):
                mine.copy_(theirs)
        self.adam.load_state_dict(state["adam"])
