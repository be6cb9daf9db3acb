"""The seam on small random models of four families: what it changes, what it leaves alone, what it records."""

import numpy as np
import pytest
import torch

from macs.config import PRESETS, preset
from macs.model import apply
from macs.model.anatomy import dissect
from macs.trace_file import load_trace, save_trace
from tests import tiny
from tests.hooked import TIGHT, counted_rows, experts_as, logits, poisoned_memory, watch
from tests.test_trace import same

IMPLEMENTATIONS = ("eager", "grouped_mm")


@pytest.fixture(scope="module", params=tiny.FAMILIES)
def case(request):
    return tiny.case(request.param)


@pytest.fixture(scope="module")
def qwen():
    return tiny.case("qwen3_vl_moe")


@pytest.fixture(params=IMPLEMENTATIONS)
def implementation(request):
    return request.param


@pytest.mark.parametrize("name", [name for name in PRESETS if name != "vanilla"])
def test_room_for_all_changes_no_bit_unless_pairs_are_added(case, name):
    with apply(case.model, name, gamma=1e3, ep_size=2):
        changed = logits(case.model, case.batch)
    assert torch.equal(changed, logits(case.model, case.batch)) == (name != "expanded_drop")


def test_without_the_experts_flag_the_poison_would_show(qwen):
    """Guards the test of dropped pairs in tests/test_families.py: the poisoning reaches grouped_mm, so its finite output is the seam's doing."""
    with poisoned_memory(), apply(qwen.model, "token_drop", gamma=0.2, ep_size=2):
        experts = dissect(qwen.model).layers[-1].experts
        experts._is_expert_parallel = False
        assert not logits(qwen.model, qwen.batch).isfinite().all()


@pytest.mark.parametrize("name", list(PRESETS))
def test_only_pairs_that_are_kept_rerouted_or_added_cost_computation(qwen, implementation, name, monkeypatch):
    with experts_as(qwen.model, implementation), apply(qwen.model, name, **TIGHT) as run:
        with counted_rows(qwen.model, monkeypatch) as rows:
            logits(qwen.model, qwen.batch)
    executed = [int(layer.decision.tokens_after_N.sum()) for layer in run.trace.layers]
    assert rows == executed == [layer.kept + layer.rerouted + layer.expanded for layer in run.trace.layers]


@pytest.mark.parametrize("name", list(PRESETS))
def test_scheduling_the_trace_again_reproduces_the_run(case, name, tmp_path):
    modality = {index: np.resize([1, -1, 0], tiny.EXPERTS) for index in case.layers}
    for source in ("first", "layer", "embedding"):
        with apply(case.model, name, modality=modality, entropy_source=source, **TIGHT) as run:
            logits(case.model, case.batch)
        trace = run.trace
        again = trace.reschedule(trace.policy)
        assert all(same(a.decision, b.decision) for a, b in zip(trace.layers, again.layers))
    save_trace(trace, tmp_path / "trace.npz")
    assert same(load_trace(tmp_path / "trace.npz"), trace)


def test_a_plan_on_vanillas_trace_is_what_a_run_decides_in_its_first_layer(case):
    traces = {}
    for policy in (preset("vanilla"), preset("macs", gamma=0.5)):
        with apply(case.model, policy, ep_size=4) as run:
            logits(case.model, case.batch)
        traces[policy.preset] = run.trace
    planned = traces["vanilla"].reschedule(traces["macs"].policy)
    assert same(planned.layers[0].decision, traces["macs"].layers[0].decision)


def test_bfloat16_and_its_trace(implementation):
    model, batch = tiny.qwen(dtype=torch.bfloat16), tiny.case("qwen3_vl_moe").batch
    with experts_as(model, implementation):
        before = logits(model, batch)
        with apply(model, "vanilla") as run:
            assert torch.equal(logits(model, batch), before)
        with apply(model, "macs", **TIGHT) as run:
            assert logits(model, batch).isfinite().all()
    trace = run.trace
    assert trace.about["dtype"] == "bfloat16" and trace.router_normalizes and trace.about["router_scoring"] == "softmax"
    assert same(trace.reschedule(trace.policy).layers[0].decision, trace.layers[0].decision)
    assert trace.layers[0].scores_TN.dtype == trace.layers[0].weight_TK.dtype == np.float32


def test_entropies_are_those_of_the_features_they_are_named_after(case):
    anatomy = dissect(case.model)
    with apply(case.model, "vanilla") as run:
        hidden = [watch(layer.experts, inputs=True) for layer in anatomy.layers]
        with torch.no_grad():
            output = case.model(**case.batch)
    for _, handle in hidden:
        handle.remove()
    trace = run.trace
    pooled = output.image_outputs.pooler_output
    projected_VD = torch.cat(list(pooled)) if isinstance(pooled, (list, tuple)) else pooled.reshape(-1, pooled.shape[-1])
    visual_T = trace.tokens.visual_T
    assert np.isnan(trace.entropy_embedding_T[~visual_T]).all() and np.isnan(trace.entropy_first_T[~visual_T]).all()
    np.testing.assert_allclose(trace.entropy_embedding_T[visual_T], entropy(projected_VD), rtol=1e-5, atol=1e-6)
    for layer, (seen, _) in zip(trace.layers, hidden):
        np.testing.assert_allclose(layer.entropy_T[visual_T], entropy(seen[0][0][visual_T]), rtol=1e-5, atol=1e-6)
    assert np.array_equal(trace.entropy_first_T, trace.layers[0].entropy_T, equal_nan=True)


def entropy(features):
    p = np.exp(features.double().numpy() - features.double().numpy().max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    return -(p * np.log(np.where(p > 0, p, 1))).sum(1)


def test_a_router_that_normalises_and_one_that_does_not(case):
    with apply(case.model, "vanilla") as run:
        logits(case.model, case.batch)
    family = case.model.config.model_type
    expected = {"qwen3_vl_moe": ("softmax", True), "glm4v_moe": ("sigmoid", True), "internvl": ("softmax", False), "gemma4": ("given", True)}
    assert (run.trace.about["router_scoring"], run.trace.router_normalizes) == expected[family]
    layer = run.trace.layers[0]
    picked_TK = np.take_along_axis(layer.scores_TN, layer.expert_TK, 1)
    ratio_TK = layer.weight_TK / picked_TK
    np.testing.assert_allclose(ratio_TK, ratio_TK[:, :1].repeat(tiny.TOP_K, 1), rtol=1e-5)


def test_gemmas_scale_per_expert_follows_a_rerouted_pair():
    case = tiny.case("gemma4")
    layer = dissect(case.model).layers[0]
    with apply(case.model, "macs", renormalize="never", gamma=0.8, ep_size=2) as run:
        seen, handle = watch(layer.experts, inputs=True)
        logits(case.model, case.batch)
    handle.remove()
    record, (_, expert_TC, weight_TC) = run.trace.layers[0], seen[0]
    assert record.rerouted > 0
    scale_N = np.append(layer.router.per_expert_scale.detach().numpy(), 0)
    scores_TN = np.pad(record.scores_TN, ((0, 0), (0, 1)))
    sum_T1 = np.take_along_axis(record.scores_TN, record.expert_TK, 1).sum(1, keepdims=True)
    expected_TC = np.take_along_axis(scores_TN, expert_TC.numpy(), 1) / sum_T1 * scale_N[expert_TC.numpy()]
    np.testing.assert_allclose(weight_TC.numpy(), expected_TC, rtol=1e-4, atol=1e-7)


def test_capacity_follows_the_experts_modality(qwen):
    modality = {0: [1, -1, 0] + [0] * 5, 2: [0] * 8}
    with apply(qwen.model, "macs", modality=modality, ep_size=2) as run:
        logits(qwen.model, qwen.batch)
    first, second = (layer.decision.capacity_N for layer in run.trace.layers)
    sign = np.sign(run.trace.layers[0].decision.visual_ratio - 0.5)
    assert sign and np.sign(first[0] - first[2]) == sign and np.sign(first[1] - first[2]) == -sign
    assert len(set(second)) == 1 and run.trace.calibrated
    with apply(qwen.model, "macs", ep_size=2) as run:
        logits(qwen.model, qwen.batch)
    assert not run.trace.calibrated and len(set(run.trace.layers[0].decision.capacity_N)) == 1


def left_padded(batch, count):
    ids = torch.nn.functional.pad(batch["input_ids"], (count, 0), value=256)
    mask = (torch.arange(ids.shape[1]) >= count).long()[None]
    return batch | {"input_ids": ids, "attention_mask": mask, "mm_token_type_ids": (ids == tiny.IMAGE).int()}


@pytest.mark.parametrize("name", list(PRESETS))
def test_padding_changes_no_decision_and_is_in_no_count(qwen, name):
    runs = []
    for batch in (qwen.batch, left_padded(qwen.batch, 580)):
        with apply(qwen.model, name, **TIGHT) as run:
            last = logits(qwen.model, batch)[0, -1]
        runs.append((run.trace, last))
    (alone, answer), (padded, padded_answer) = runs
    assert padded.tokens.valid_T.sum() == len(alone.tokens)
    for a, b in zip(alone.layers, padded.layers):
        assert np.array_equal(a.decision.capacity_N, b.decision.capacity_N) and a.decision.tokens_after_N.tolist() == b.decision.tokens_after_N.tolist()
        assert np.array_equal(a.decision.status_TC, b.decision.status_TC[580:]) and np.array_equal(a.decision.expert_TC, b.decision.expert_TC[580:])
        assert b.pairs == len(alone.tokens) * tiny.TOP_K == b.kept + b.rerouted + b.dropped
    torch.testing.assert_close(answer, padded_answer, rtol=1e-3, atol=1e-3)


def test_the_layers_schedule_is_timed(qwen):
    with apply(qwen.model, "macs", **TIGHT) as run:
        logits(qwen.model, qwen.batch)
    assert all(layer.seconds["schedule"].shape == (1,) and 0 < layer.seconds["schedule"][0] < 1 for layer in run.trace.layers)
