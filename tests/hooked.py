"""What the seam's tests share: one forward pass, a look at what experts are called with, poisoned memory, counted work."""

from contextlib import contextmanager

import numpy as np
import torch
import transformers.integrations.moe as hf_moe

from macs.model.anatomy import dissect
from tests import tiny

TIGHT = {"gamma": 0.4, "ep_size": 2}  # cuts pairs in every family


@contextmanager
def experts_as(model, implementation):
    text = model.get_decoder()
    before = text.config._experts_implementation
    text.set_experts_implementation(implementation)
    yield
    text.set_experts_implementation(before)


@contextmanager
def poisoned_memory():
    """Fill what kernels leave uninitialised with NaN, so that reading it cannot go unseen."""
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.use_deterministic_algorithms(False)


def logits(model, batch):
    with torch.no_grad():
        return model(**batch).logits


def watch(module, *, inputs):
    """Record the (ids, weights) that experts are called with, or what they return; returns (list, handle)."""
    seen = []
    if inputs:
        return seen, module.register_forward_pre_hook(lambda _, args: seen.append(args))
    return seen, module.register_forward_hook(lambda _, args, output: seen.append(output))


@contextmanager
def counted_rows(model, monkeypatch):
    """Count, per MoE layer, the rows that enter the first matrix product of its experts, eager or grouped."""
    rows, grouped, linear = [], hf_moe._grouped_linear, torch.nn.functional.linear

    def count(weight, number):
        if weight.shape[-2:] == (2 * 40, tiny.HIDDEN):  # gate and up
            rows[-1] += number

    def counted_grouped(inputs, weight, offsets, **kwargs):
        count(weight, int(offsets[-1]))
        return grouped(inputs, weight, offsets, **kwargs)

    def counted_linear(inputs, weight, bias=None):
        count(weight, len(inputs))
        return linear(inputs, weight, bias)

    monkeypatch.setattr(hf_moe, "_grouped_linear", counted_grouped)
    monkeypatch.setattr(torch.nn.functional, "linear", counted_linear)
    handles = [layer.experts.register_forward_pre_hook(lambda *_: rows.append(0)) for layer in dissect(model).layers]
    yield rows
    [handle.remove() for handle in handles]


def prompts(count, length=12):
    return {"input_ids": torch.from_numpy(np.random.default_rng(count).integers(32, 120, (count, length)))}


def hooks_on(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
