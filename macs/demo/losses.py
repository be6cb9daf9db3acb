"""What training minimises: answers, dense labels under the visual tokens, and a mild balance of the experts.

The dense labels are read after the second of the language model's layers, not at the vision tower: naming what lies under
a token is then work for experts, as it is in the large models that this one stands for.
"""

from contextlib import contextmanager

import torch
from torch import nn
from torch.nn import functional as F

from .vocabulary import DENSE, FAMILIES


def new_heads(hidden: int) -> nn.ModuleDict:
    """Linear heads on the visual tokens that name what lies under each (see DENSE); used in training only."""
    return nn.ModuleDict({name: nn.Linear(hidden, size) for name, size in DENSE.items()})


DENSE_AFTER = 2  # layers of the language model


@contextmanager
def hidden_after(model, layers: int):
    """A list that receives the hidden states [B, L, D] after that many layers at every forward pass."""
    kept: list[torch.Tensor] = []

    def keep(module, inputs, output):
        kept.append(output[0] if isinstance(output, tuple) else output)

    handle = model.model.language_model.layers[layers - 1].register_forward_hook(keep)
    try:
        yield kept
    finally:
        handle.remove()


def forward(model, batch: dict):
    """The language model's output, and the hidden states [visual tokens, D] that the dense labels are read from."""
    with hidden_after(model, DENSE_AFTER) as kept:
        out = model.model(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            shared_valid=batch["shared_valid"],
            position_ids=batch["position_ids"],
            pixel_values=batch["pixel_values"],
            image_grid_thw=batch["image_grid_thw"],
            output_router_logits=True,
            use_cache=False,
        )
    return out, kept[0][batch["input_ids"] == model.config.image_token_id]


def lesson_loss(model, heads, batch: dict, balance_weight: float) -> tuple[torch.Tensor, dict]:
    """Dense loss + balance loss of images without questions; the layers after the heads are left out."""
    language = model.model.language_model
    layers, language.layers = language.layers, language.layers[:DENSE_AFTER]
    try:
        out, seen = forward(model, batch)
    finally:
        language.layers = layers
    dense = dense_loss(heads, seen, batch["dense"])
    balance, skew = balance_loss(out.router_logits, batch["valid"], model.config.text_config.num_experts_per_tok)
    return dense + balance_weight * balance, {"dense": dense.item(), "balance": balance.item(), "skew": skew}


def balance_loss(router_logits: tuple[torch.Tensor, ...], valid: torch.Tensor, top_k: int) -> tuple[torch.Tensor, list]:
    """Mean over layers of N·Σ f_j·p_j (1 when even), and max/mean load per layer, over tokens that are not padding."""
    total, skew = 0.0, []
    flat = valid.reshape(-1)
    for logits_TN in router_logits:
        probs_TN = logits_TN.float().softmax(-1)[flat]
        chosen = probs_TN.topk(top_k, -1).indices.reshape(-1)
        load_N = torch.bincount(chosen, minlength=probs_TN.shape[1]).float() / chosen.numel()
        total = total + probs_TN.shape[1] * (load_N * probs_TN.mean(0)).sum()
        skew.append(round(float(load_N.max() * probs_TN.shape[1]), 2))
    return total / len(router_logits), skew


def dense_loss(heads: nn.ModuleDict, seen: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of the labels under each visual token (a third of each is summed); background counts a fifth."""
    total = 0.0
    for name, target in zip(DENSE, labels):
        weight = torch.ones(heads[name].out_features, device=seen.device)
        weight[0] = 0.2
        total = total + F.cross_entropy(heads[name](seen).float(), target, weight=weight) / 3
    return total


def losses(model, heads, batch: dict, dense_weight: float, balance_weight: float) -> tuple[torch.Tensor, dict]:
    """Answer loss + dense loss + balance loss of one batch, and what the log needs."""
    out, seen = forward(model, batch)
    hidden = out.last_hidden_state.flatten(0, 1)[batch["answer_at"]]
    logits = model.lm_head(hidden).float()
    answer = F.cross_entropy(logits, batch["answer_id"])
    dense = dense_loss(heads, seen, batch["dense"])
    balance, skew = balance_loss(out.router_logits, batch["valid"], model.config.text_config.num_experts_per_tok)
    right = (logits.argmax(-1) == batch["answer_id"]).long()
    exact = torch.ones(len(batch["family"]), dtype=torch.long, device=right.device)
    exact = exact.scatter_reduce(0, batch["answer_question"], right, "amin")
    total = answer + dense_weight * dense + balance_weight * balance
    return total, {
        "answer": answer.item(),
        "dense": dense.item(),
        "balance": balance.item(),
        "skew": skew,
        "exact": exact,
    }


def by_family(exact: torch.Tensor, family: torch.Tensor, into: dict) -> None:
    """Adds [right, asked] per family."""
    for i, name in enumerate(FAMILIES):
        chosen = family == i
        right, asked = into.get(name, (0, 0))
        into[name] = (right + int(exact[chosen].sum()), asked + int(chosen.sum()))
