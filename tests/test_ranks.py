"""The model on 2 and 4 real ranks over gloo: the same numbers as one process, and each rank's time."""

import threading

import numpy as np
import pytest
import torch

from macs.config import PRESETS, preset
from macs.core import KEPT, REROUTED
from macs.engine import member
from macs.engine.base import EngineFailure, Hooks, Request, Stopped
from macs.engine.launch import RankGroup
from macs.engine.ranks import RanksEngine
from macs.model.anatomy import dissect
from macs.model.parallel import partial_output
from macs.model.timeline import CallTimes, split_collectives
from macs.trace_file import load_trace, save_trace
from tests import rank_jobs, tiny
from tests.processes import listening
from tests.rank_fixtures import folder, local, one_thread_a_rank  # noqa: F401

REQUEST = Request("what is it?", tiny.picture(), 16)
PARTS = {"experts", "schedule", "communication", "waiting"}


@pytest.fixture(scope="session")
def groups():
    made = {}

    def get(size):
        if size not in made:
            made[size] = RankGroup(size)
        return made[size]

    yield get
    for group in made.values():
        group.close()


@pytest.fixture(scope="module", params=[(2, "all_reduce"), (2, "all_to_all"), (4, "all_reduce"), (4, "all_to_all")], ids=lambda p: f"{p[0]}-{p[1]}")
def split(request, folder, groups):
    """The model over the ranks of a shared group; 4 ranks have more members than the model has KV heads."""
    size, exchange = request.param
    return RanksEngine(folder, size, lambda: groups(size), exchange=exchange)


def batch():
    return tiny.case("qwen3_vl_moe").batch


def padded():
    """Two prompts of different length, the shorter one padded on the left; text only."""
    ids = torch.tensor([[256] * 6 + [70, 71, 72], [*range(80, 89)]])
    return {"input_ids": ids, "attention_mask": (ids != 256).long(), "mm_token_type_ids": torch.zeros_like(ids)}


def assert_same(split, local, inputs, policy, fields, steer=None):
    size = split.info.ep_size
    expected, trace = rank_jobs.run_model(local._loaded.model, inputs, policy, fields, size, steer)
    real = inputs["attention_mask"].bool() if "attention_mask" in inputs else torch.ones(inputs["input_ids"].shape, dtype=torch.bool)
    shares = split.group.call(rank_jobs.forward, inputs, policy, fields, steer)
    for logits, of_rank, _ in shares:
        assert torch.allclose(logits[real], expected[real], rtol=0, atol=1e-5)
        for layer, other in zip(of_rank.layers, trace.layers, strict=True):
            assert np.array_equal(layer.decision.expert_TC, other.decision.expert_TC)
            assert np.array_equal(layer.decision.status_TC, other.decision.status_TC)
    return trace, [[times.pairs for times in times_L] for *_, times_L in shares]


@pytest.mark.parametrize("policy", PRESETS)
def test_every_policy_decides_and_computes_as_one_process(split, local, policy):
    trace, pairs_GL = assert_same(split, local, batch(), policy, {"gamma": 0.6})
    for layer, pairs_G in zip(trace.layers, zip(*pairs_GL)):
        assert list(pairs_G) == layer.rank_tokens(split.info.ep_size).tolist()
        if policy != "vanilla":
            assert layer.dropped > 0


def test_a_padded_batch(split, local):
    assert_same(split, local, padded(), "macs", {"gamma": 0.7})
    assert_same(split, local, padded(), "vanilla", {})


def test_all_tokens_to_one_expert_of_the_last_rank(split, local):
    trace, pairs_GL = assert_same(split, local, batch(), "vanilla", {}, ((7,), 1))
    count = len(trace.tokens)
    assert pairs_GL == [[0, 0]] * (split.info.ep_size - 1) + [[count, count]]
    trace, _ = assert_same(split, local, batch(), "macs", {"gamma": 0.5}, ((7,), 1))
    assert trace.layers[0].rerouted > 0 and trace.layers[0].rank_tokens(split.info.ep_size)[0] == 0


def test_two_tokens_for_one_rank_then_decode_steps(split, local):
    ids = torch.tensor([[70, 71]])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "mm_token_type_ids": torch.zeros_like(ids)}
    expected = rank_jobs.answer(local._loaded.model, inputs, split.info.ep_size, (0,), 4)
    assert len(expected) == 6
    for ids in split.group.call(rank_jobs.steered_answer, inputs, (0,), 4):
        assert ids == expected


@pytest.mark.parametrize("policy", PRESETS)
def test_runs_give_the_answer_of_one_process_and_the_time_of_each_rank(split, local, policy):
    chosen, size = preset(policy, gamma=0.6), split.info.ep_size
    mine = split.run(REQUEST, chosen)
    other = local.run(REQUEST, chosen, ep_size=size)
    assert split.info.parameters == local.info.parameters and split.info.measured
    assert mine.answer_A == other.answer_A and len(mine.answer_A) == 16
    assert np.abs(mine.logprob_AV - other.logprob_AV).max() < 1e-4
    assert mine.trace.answer == other.trace.answer and mine.trace.images == other.trace.images
    for layer, same in zip(mine.trace.layers, other.trace.layers, strict=True):
        assert np.array_equal(layer.decision.status_TC, same.decision.status_TC)
        executed = int(layer.decision.tokens_after_N.sum())
        assert executed == layer.kept + layer.rerouted + layer.expanded and layer.pairs == len(mine.trace.tokens) * 3
        assert layer.kept + layer.rerouted + layer.dropped == layer.pairs or policy == "expanded_drop"
        assert set(layer.seconds) == PARTS
        for seconds_G in layer.seconds.values():
            assert seconds_G.shape == (size,) and (seconds_G >= 0).all()
        assert (layer.seconds["experts"] > 0).all() and (layer.seconds["schedule"] > 0).all()
    assert mine.trace.about["times"] == f"measured on {size} ranks" and "gloo" in mine.trace.about["device"]
    assert [rank["peak_bytes"]["host"] > 2**26 for rank in mine.trace.about["ranks"]] == [True] * size


def test_kl_from_vanilla_is_that_of_one_process(split, local):
    policy, size = preset("macs", gamma=0.5), split.info.ep_size
    mine = split.run(REQUEST, policy, reference=split.run(REQUEST, preset("vanilla")))
    other = local.run(REQUEST, policy, ep_size=size, reference=local.run(REQUEST, preset("vanilla"), ep_size=size))
    assert mine.trace.kl > 1e-3 and mine.trace.kl == pytest.approx(other.trace.kl, rel=1e-3)


def test_a_trace_with_rank_times_survives_its_file(split, tmp_path):
    trace = split.run(REQUEST, preset("macs")).trace
    save_trace(trace, tmp_path / "t.npz")
    again = load_trace(tmp_path / "t.npz")
    assert again.about["ranks"] == trace.about["ranks"]
    for layer, same in zip(trace.layers, again.layers):
        assert all(np.allclose(layer.seconds[part], same.seconds[part]) for part in PARTS)


def test_a_stop_leaves_the_ranks_ready(split, local):
    stop = threading.Event()
    seen = []

    def progress(step):
        seen.append(step.phase)
        if step.phase == "decode":
            stop.set()

    with pytest.raises(Stopped):
        split.run(Request("go on", None, 400), preset("macs"), hooks=Hooks(progress, stop))
    assert seen[0] == "encode" and "prefill" in seen
    pids = split.group.pids
    assert split.run(REQUEST, preset("vanilla")).answer_A == local.run(REQUEST, preset("vanilla")).answer_A
    assert split.group.pids == pids


def test_bad_input_leaves_the_ranks_ready(split):
    pids = split.group.pids
    with pytest.raises(ValueError, match="prompt"):
        split.run(Request(" "), preset("macs"))
    with pytest.raises(ValueError, match="--ranks 8"):
        split.run(REQUEST, preset("macs"), ep_size=8)
    assert split.group.pids == pids and len(split.run(Request("so", None, 1), preset("macs")).answer_A) == 1


def test_dropped_pairs_are_never_sent(split):
    if split._exchange == "all_reduce":
        assert split.group.call(rank_jobs.rows_sent, batch(), "token_drop", {"gamma": 0.5}) == [[]] * split.info.ep_size
        return
    sent_GS = split.group.call(rank_jobs.rows_sent, batch(), "token_drop", {"gamma": 0.5})
    trace = split.group.call(rank_jobs.forward, batch(), "token_drop", {"gamma": 0.5})[0][1]
    for number, layer in enumerate(trace.layers):
        kept = layer.count(KEPT) + layer.count(REROUTED)
        assert kept < layer.pairs
        assert sum(sent_S[2 * number] for sent_S in sent_GS) == kept  # to the experts
        assert sum(sent_S[2 * number + 1] for sent_S in sent_GS) == kept  # and back


@pytest.mark.parametrize("size", [2, 4])
def test_under_data_parallelism_each_rank_applies_its_share(groups, size):
    generator = torch.Generator().manual_seed(3)
    hidden_GTD = [torch.randn(count, tiny.HIDDEN, generator=generator) for count in (24, 9, 17, 1)[:size]]
    scores_GTN = [(torch.randn(len(h), 8, generator=generator) + torch.tensor([2.0, 0, 0, 0, 0, 0, 0, 0])).softmax(-1) for h in hidden_GTD]
    policy = preset("token_drop", gamma=0.8)
    experts = dissect(tiny.qwen()).layers[0].experts
    received_N = torch.zeros(8)
    for rank, (out_TD, decision) in enumerate(groups(size).call(rank_jobs.data_parallel, hidden_GTD, scores_GTN, policy)):
        alone = rank_jobs.own_schedule(scores_GTN[rank], policy, size)
        assert torch.equal(decision.expert_TC, alone.expert_TC)
        with torch.no_grad():
            expected_TD, _ = partial_output(experts, hidden_GTD[rank], alone.expert_TC, alone.weight_TC, 0, 8)
        assert torch.allclose(out_TD, expected_TD, atol=1e-5)
        received_N += decision.tokens_after_N
    tokens = sum(map(len, hidden_GTD))
    assert received_N.max() <= 0.8 * tokens * 3 / 8 + size  # the whole capacity, each rank's share rounded up
    assert received_N.sum() < tokens * 3


def test_a_dropped_pair_adds_nothing_under_either_marker():
    experts = dissect(tiny.qwen()).layers[0].experts
    hidden_TD = torch.randn(5, tiny.HIDDEN, generator=torch.Generator().manual_seed(1))
    kept_TK, weight_TK = torch.tensor([[3, 8, -1]] * 5), torch.tensor([[0.5, 0.0, 0.0]] * 5)
    with torch.no_grad():
        expected_TD = experts(hidden_TD, kept_TK[:, :1], weight_TK[:, :1])
        got = [partial_output(experts, hidden_TD, kept_TK, weight_TK, first, 4) for first in (0, 4)]
    assert [pairs for _, pairs in got] == [5, 0]
    assert torch.allclose(got[0][0], expected_TD, atol=1e-6) and not got[1][0].any()


def test_waiting_is_the_time_before_the_last_rank_enters():
    early = CallTimes(1, (0.0, 1.0), ((1.0, 4.0), (5.0, 6.0)))
    late = CallTimes(9, (0.0, 3.0), ((13.0, 14.1), (15.5, 16.0)))  # a clock 10 s ahead
    communication_G, waiting_G = split_collectives([early, late], [0.0, -10.0])
    assert waiting_G == pytest.approx([2.5, 0.0]) and communication_G == pytest.approx([1.5, 1.6])


def test_clocks_of_one_host_are_one_clock(groups):
    assert abs(groups(2).call(rank_jobs.ping)[1]) < 0.05


def test_ranks_listen_on_loopback_alone(groups):
    for pid in groups(2).pids:
        addresses = listening(pid)
        assert addresses and set(addresses) == {"0100007F"}  # 127.0.0.1: torch's own sockets between ranks


def test_ranks_that_decide_differently_void_the_run(groups, folder):
    engine = RanksEngine(folder, 2, lambda: groups(2))
    shares = engine.group.call(member.run, Request("hello", None, 1), preset("macs"), None)
    member.put_together(shares, engine.info, "all_reduce")
    shares[1] = type(shares[1])(**{**vars(shares[1]), "digest": "other"})
    with pytest.raises(EngineFailure, match="Rank 1 decided otherwise"):
        member.put_together(shares, engine.info, "all_reduce")
