"""Traces: the file gives back what was saved, damaged files are refused, other policies follow from recorded scores."""

import dataclasses
import io

import numpy as np
import pytest

from macs.config import preset
from macs.engine.compare import equal_time_gamma
from macs.trace_file import load_trace, save_trace
from tests.made import made_trace


def same(a, b) -> bool:
    if dataclasses.is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return a == b or (a != a and b != b)  # NaN is the same as NaN


def saved(trace) -> bytes:
    buffer = io.BytesIO()
    save_trace(trace, buffer)
    return buffer.getvalue()


@pytest.mark.parametrize("name", ["vanilla", "token_drop", "expanded_drop", "macs_no_reroute", "macs"])
def test_a_saved_trace_comes_back_whole(name):
    trace = made_trace(preset(name, gamma=0.7))
    assert same(load_trace(io.BytesIO(saved(trace))), trace)


def test_the_file_holds_no_pickle():
    with np.load(io.BytesIO(saved(made_trace(preset("macs")))), allow_pickle=False) as arrays:
        assert all(arrays[name].dtype != object for name in arrays.files)


def test_every_cut_of_a_trace_file_is_refused_in_one_sentence():
    whole = saved(made_trace(preset("macs")))
    for end in range(0, len(whole) - 1, max(1, len(whole) // 40)):
        with pytest.raises(ValueError) as error:
            load_trace(io.BytesIO(whole[:end]))
        assert "\n" not in str(error.value)


def test_arrays_that_do_not_fit_are_refused():
    trace = made_trace(preset("macs"))
    layer = dataclasses.replace(trace.layers[0], expert_TK=trace.layers[0].expert_TK + 100)
    with pytest.raises(ValueError, match="do not fit"):
        load_trace(io.BytesIO(saved(dataclasses.replace(trace, layers=(layer, *trace.layers[1:])))))


def test_pairs_are_kept_rerouted_or_dropped_and_none_is_lost():
    for name in ("vanilla", "token_drop", "macs_no_reroute", "macs", "expanded_drop"):
        trace = made_trace(preset(name, gamma=0.6))
        for layer in trace.layers:
            assert layer.kept + layer.rerouted + layer.dropped == layer.pairs == trace.tokens.valid_T.sum() * trace.top_k


def test_rescheduling_with_the_same_policy_changes_nothing_and_there_and_back_neither():
    trace = made_trace(preset("macs", gamma=0.8))
    assert same(trace.reschedule(trace.policy), trace)
    assert same(trace.reschedule(preset("token_drop", gamma=0.5)).reschedule(trace.policy), trace)


def test_reschedule_refuses_ranks_that_do_not_divide_and_entropies_it_lacks():
    trace = made_trace(preset("macs"))
    with pytest.raises(ValueError, match="ep_size is 3"):
        trace.reschedule(trace.policy, ep_size=3)
    blind = dataclasses.replace(trace, entropy_embedding_T=np.full(len(trace.tokens), np.nan, np.float32))
    with pytest.raises(ValueError, match="no entropies of source 'embedding'"):
        blind.reschedule(trace.policy.with_(entropy_source="embedding"))


def test_straggler_is_the_mean_over_layers_of_the_slowest_rank_over_vanillas_mean():
    trace = made_trace(preset("token_drop", gamma=0.7))
    per_layer = []
    for layer in trace.layers:
        ranks = [0] * trace.ep_size
        for expert in layer.decision.expert_TC.ravel():
            if expert < trace.num_experts:
                ranks[expert // (trace.num_experts // trace.ep_size)] += 1
        per_layer.append(max(ranks) / (layer.pairs / trace.ep_size))
    assert trace.straggler() == pytest.approx(np.mean(per_layer))


def test_equal_time_gamma_is_the_least_that_reaches_the_target():
    trace = made_trace(preset("vanilla"))
    target = trace.reschedule(preset("macs", gamma=0.6)).straggler()
    gamma, reached = equal_time_gamma(trace, target)
    at = trace.reschedule(preset("token_drop", gamma=gamma)).straggler()
    below = trace.reschedule(preset("token_drop", gamma=gamma - 0.01)).straggler()
    assert reached and below < target <= at + 1e-9
    assert equal_time_gamma(trace, 100.0) == (8.0, False)
