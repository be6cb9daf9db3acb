"""The cases of public reports that need real ranks (C01, C03, C14, C15, C18, C22): 2 and 4 processes over gloo on small random models."""

import copy
import os
import signal
import time

import numpy as np
import pytest
import torch

from macs.config import preset
from macs.core import DROPPED
from macs.engine.base import EngineFailure, Hooks, Request
from macs.engine.launch import RankGroup
from macs.engine.ranks import RanksEngine
from macs.engine.start import start
from macs.model import encode, load
from macs.model.anatomy import dissect
from macs.model.experts import skipping_dropped
from macs.model.parallel import partial_output
from tests import rank_jobs, tiny
from tests.checkpoints import CHECKPOINTS
from tests.hooked import experts_as
from tests.processes import gone, listening
from tests.rank_fixtures import folder, local, one_thread_a_rank  # noqa: F401

SIZES = (2, 4)


@pytest.fixture(scope="module")
def groups():
    made = {size: RankGroup(size) for size in SIZES}
    yield made
    for group in made.values():
        group.close()


@pytest.fixture(scope="module", params=SIZES)
def split(request, folder, groups):
    return RanksEngine(folder, request.param, lambda: groups[request.param])


def same(split, local, batch, policy, fields, steer=None):
    """Run on ranks and whole; return the whole run's trace and the pairs that each rank computed in each layer [G, L]."""
    expected, trace = rank_jobs.run_model(local._loaded.model, batch, policy, fields, split.info.ep_size, steer)
    shares = split.group.call(rank_jobs.forward, batch, policy, fields, steer)
    for logits, of_rank, _ in shares:
        assert torch.isfinite(logits).all() and (logits - expected).abs().max() < 1e-5
        assert all(np.array_equal(a.decision.status_TC, b.decision.status_TC) for a, b in zip(of_rank.layers, trace.layers, strict=True))
    return trace, [[times.pairs for times in times_L] for *_, times_L in shares]


@pytest.mark.parametrize("implementation", ["eager", "grouped_mm", "batched_mm"])
def test_c01_markers_of_dropped_pairs_add_nothing_in_any_implementation(implementation):
    """Neither N nor −1 is ever an index: such a slot adds exactly 0, in each of transformers' expert loops and on each rank's share."""
    model = tiny.qwen()
    experts = dissect(model).layers[0].experts
    hidden_TD = torch.randn(6, tiny.HIDDEN, generator=torch.Generator().manual_seed(0))
    expert_TK, weight_TK = torch.tensor([[2, tiny.EXPERTS, 5]] * 6), torch.tensor([[0.5, 0.0, 0.25]] * 6)
    with experts_as(model, implementation), torch.no_grad(), skipping_dropped(experts):
        kept_TD = experts(hidden_TD, expert_TK[:, ::2], weight_TK[:, ::2])
        torch.testing.assert_close(experts(hidden_TD, expert_TK, weight_TK), kept_TD, rtol=0, atol=1e-5)
        none_TD = experts(hidden_TD, torch.full((6, 3), tiny.EXPERTS), torch.zeros(6, 3))
        assert (none_TD == 0).all()
        for marker in (tiny.EXPERTS, -1):
            marked_TK = expert_TK.masked_fill(expert_TK == tiny.EXPERTS, marker)
            halves = [partial_output(share_of(experts, first), hidden_TD, marked_TK, weight_TK, first, 4) for first in (0, 4)]
            torch.testing.assert_close(halves[0][0] + halves[1][0], kept_TD, rtol=0, atol=1e-5)
            assert [pairs for _, pairs in halves] == [6, 6]  # expert 2 on the first, 5 on the second


def share_of(experts, first, count=4):
    """Return the experts as the rank that owns ``count`` of them from ``first`` holds them."""
    own = copy.deepcopy(experts)
    for weights in (own.gate_up_proj, own.down_proj):
        weights.data = weights.data[first : first + count].clone()
    own.num_experts = count
    return own


def test_c01_dropped_slots_on_ranks_give_the_logits_of_one_process(split, local):
    trace, pairs_GL = same(split, local, tiny.case("qwen3_vl_moe").batch, "token_drop", {"gamma": 0.5})
    for layer, pairs_G in zip(trace.layers, zip(*pairs_GL)):
        assert layer.dropped > 0 and sum(pairs_G) == layer.pairs - layer.dropped


def test_c03_work_for_the_last_rank_is_done_by_the_last_rank(split, local):
    last, size = tiny.EXPERTS - 1, split.info.ep_size
    trace, pairs_GL = same(split, local, tiny.case("qwen3_vl_moe").batch, "vanilla", {}, ((last,), 1))
    tokens = int(trace.tokens.valid_T.sum())
    for number, layer in enumerate(trace.layers):
        assert [pairs_L[number] for pairs_L in pairs_GL] == [0] * (size - 1) + [tokens]
        assert layer.decision.tokens_after_N.tolist() == [0] * last + [tokens]  # numbered over all ranks, as the page shows them


@pytest.mark.parametrize("name", ["qwen3.5", "glm-4.5v"])
def test_c14_a_shared_expert_is_summed_once_and_counts_nowhere(name, groups, tmp_path):
    CHECKPOINTS[name].write(tmp_path)
    loaded = load(tmp_path)
    batch = dict(encode(loaded, "What is it?", tiny.picture()))
    split = RanksEngine(str(tmp_path), 2, lambda: groups[2])
    with torch.no_grad():
        plain = loaded.model(**batch).logits
    for policy, fields in (("vanilla", {}), ("macs", {"gamma": 0.5})):
        expected, trace = rank_jobs.run_model(loaded.model, batch, policy, fields, 2)
        for logits, *_ in split.group.call(rank_jobs.forward, batch, policy, fields):
            torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
        if policy == "vanilla":
            assert torch.equal(expected, plain)
        for layer in trace.layers:
            assert layer.num_experts == tiny.EXPERTS == len(layer.decision.capacity_N)
            assert layer.pairs == int(trace.tokens.valid_T.sum()) * tiny.TOP_K  # routed pairs alone


def test_c15_ranks_without_a_token_take_part_in_every_collective(split, local):
    ids = torch.tensor([[70, 71]])
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "mm_token_type_ids": torch.zeros_like(ids)}
    began = time.monotonic()
    _, pairs_GL = same(split, local, batch, "vanilla", {}, ((0,), 1))
    assert pairs_GL[0] == [2] * len(pairs_GL[0]) and not any(map(any, pairs_GL[1:]))
    expected = rank_jobs.answer(local._loaded.model, batch, split.info.ep_size, (0,), 3)
    assert split.group.call(rank_jobs.steered_answer, batch, (0,), 3) == [expected] * split.info.ep_size
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("how", ["killed", "raises"])
def test_c18_a_lost_rank_is_said_within_a_minute_and_leaves_nothing(how, folder):
    engine = start(folder, 2, device="cpu")  # the timeout is the product's own
    try:
        pids = engine.group.pids
        if how == "raises":
            engine.group.call(rank_jobs.break_last_layer, 1)
        hooks = Hooks(progress=lambda step: os.kill(pids[1], signal.SIGKILL) if how == "killed" and step.phase == "decode" else None)
        began = time.monotonic()
        with pytest.raises(EngineFailure, match="^Rank 1 of 2 (was killed by signal 9|failed: RuntimeError: made to fail)"):
            engine.run(Request("what is it?", tiny.picture(), 16), preset("macs"), hooks=hooks)
        assert time.monotonic() - began < 60 and gone(pids)  # their sockets with them
        assert len(engine.run(Request("so", None, 2), preset("macs")).answer_A) == 2
        assert all(listening(pid) for pid in engine.group.pids)
    finally:
        engine.close()


def test_c22_the_table_of_experts_covers_every_rank_and_adds_up(split):
    trace = split.run(Request("what is it?", tiny.picture(), 2), preset("macs", gamma=0.7)).trace
    tokens = int(trace.tokens.valid_T.sum())
    for layer in trace.layers:
        before_N, after_N = layer.decision.tokens_before_N, layer.decision.tokens_after_N
        assert before_N.sum() == tokens * tiny.TOP_K == layer.kept + layer.rerouted + layer.dropped
        assert after_N.sum() == layer.kept + layer.rerouted and (layer.decision.status_TC == DROPPED).any()
        assert (before_N.reshape(split.info.ep_size, -1).sum(1) > 0).all()
        assert (layer.decision.effective_before_N <= before_N).all() and (layer.decision.effective_after_N <= after_N).all()
