"""The seam's lifetime: generate, errors, nesting, threads, and everything it refuses."""

import threading

import pytest
import torch

import macs
from macs.model import apply
from macs.model.anatomy import dissect
from tests import tiny
from tests.hooked import TIGHT, hooks_on, logits, prompts, watch
from tests.test_trace import same


@pytest.fixture(scope="module", params=tiny.FAMILIES)
def case(request):
    return tiny.case(request.param)


@pytest.fixture(scope="module")
def qwen():
    return tiny.case("qwen3_vl_moe")


@pytest.mark.parametrize("phase", ["prefill", "all"])
def test_decode_steps_are_left_alone_unless_asked_for(qwen, phase):
    layer = dissect(qwen.model).layers[0]
    with apply(qwen.model, "token_drop", phase=phase, gamma=0.2, ep_size=2) as run:
        seen, handle = watch(layer.experts, inputs=True)
        qwen.model.generate(**prompts(6), max_new_tokens=5, min_new_tokens=5, do_sample=False)
    handle.remove()
    assert run.decode_steps == 4 and len(run.trace.tokens) == 6 * 12
    lost = [bool((ids == tiny.EXPERTS).any()) for _, ids, _ in seen]
    assert lost == [True] + [phase == "all"] * 4


def test_generate_under_vanilla_says_what_the_model_says(case):
    arguments = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    before = case.model.generate(**case.batch, **arguments)
    with apply(case.model, "vanilla", ep_size=4) as run:
        assert torch.equal(case.model.generate(**case.batch, **arguments), before)
    assert run.decode_steps == 5 and run.trace.tokens.visual_T.sum() == case.visual


def test_generate_without_a_cache_is_one_prefill_after_another(qwen):
    with apply(qwen.model, "macs", **TIGHT) as run:
        qwen.model.generate(**prompts(2), max_new_tokens=3, min_new_tokens=3, do_sample=False, use_cache=False)
    assert run.decode_steps == 0 and len(run.trace.tokens) == 2 * 14


def test_beams_show_the_same_image_to_every_sequence(qwen):
    for inputs in (qwen.batch, None):
        with apply(qwen.model, "macs", inputs=inputs, **TIGHT) as run:
            qwen.model.generate(**qwen.batch, num_beams=3, max_new_tokens=4, do_sample=False)
        tokens = run.trace.tokens
        assert run.trace.grids == ((3, 4),) and tokens.sequence_T.max() == 2 and tokens.visual_T.sum() == 3 * 12
        assert (tokens.position_T2.reshape(3, -1) == tokens.position_T2.reshape(3, -1)[0]).all()


def test_a_language_model_without_vision_is_scheduled_too():
    model = tiny.text_only()
    with apply(model, "macs", **TIGHT) as run:
        model.generate(**prompts(2), max_new_tokens=3, min_new_tokens=3, do_sample=False)
    assert run.decode_steps == 2 and len(run.trace.layers) == 3 and run.trace.layers[0].dropped > 0


def test_a_pass_that_keeps_gradients_is_recorded_like_any_other(qwen):
    with apply(qwen.model, "macs", **TIGHT) as run:
        qwen.model(**qwen.batch)
    with apply(qwen.model, "macs", **TIGHT) as other:
        logits(qwen.model, qwen.batch)
    assert same(run.trace.layers[0].decision, other.trace.layers[0].decision)


def test_a_call_that_hides_padding_or_ids_is_refused(qwen):
    embeds = {"inputs_embeds": torch.zeros(1, 4, tiny.HIDDEN)}
    with pytest.raises(ValueError, match="without input_ids"), apply(qwen.model, "macs"):
        logits(qwen.model, embeds)
    with pytest.raises(ValueError, match="not \\[batch, tokens\\]"), apply(qwen.model, "macs"):
        qwen.model.generate(**prompts(1), cache_implementation="static", max_new_tokens=2)


class Cancelled(Exception):
    pass


def test_an_error_in_a_layer_leaves_the_model_as_it_was(case):
    before, hooks = logits(case.model, case.batch), hooks_on(case.model)
    flags = [layer.experts._is_expert_parallel for layer in dissect(case.model).layers]
    calls = []

    def stop(layer, layers, phase):
        calls.append((layer, layers, phase))
        if layer == 1:
            raise Cancelled

    with pytest.raises(Cancelled):
        with apply(case.model, "macs", on_layer=stop, **TIGHT) as run:
            logits(case.model, case.batch)
    assert calls == [(0, len(case.layers), "prefill"), (1, len(case.layers), "prefill")]
    assert hooks_on(case.model) == hooks and flags == [layer.experts._is_expert_parallel for layer in dissect(case.model).layers]
    assert torch.equal(logits(case.model, case.batch), before)
    with pytest.raises(RuntimeError, match="No forward pass"):
        run.trace


def test_of_nested_policies_the_innermost_acts_and_the_outer_goes_on(qwen):
    plain = logits(qwen.model, qwen.batch)
    with apply(qwen.model, "token_drop", **TIGHT) as outer:
        tight = logits(qwen.model, qwen.batch)
        first = outer.trace
        with apply(qwen.model, "vanilla") as inner:
            assert torch.equal(logits(qwen.model, qwen.batch), plain)
        assert inner.trace.layers[0].dropped == 0 and outer.trace is first
        assert torch.equal(logits(qwen.model, qwen.batch), tight)
    assert not torch.equal(tight, plain) and torch.equal(logits(qwen.model, qwen.batch), plain)


def test_a_pass_of_another_thread_is_not_this_recordings(qwen):
    with apply(qwen.model, "macs", **TIGHT) as run:
        thread = threading.Thread(target=logits, args=(qwen.model, qwen.batch))
        thread.start(), thread.join()
        with pytest.raises(RuntimeError, match="in the thread that entered it"):
            run.trace


def test_not_a_number_is_reported_and_not_spread():
    model, seen = tiny.qwen(), tiny.case("qwen3_vl_moe").batch
    said = {"router scores of token 0": prompts(1), "entropy of visual token 6": seen}
    for message, batch in said.items():
        with torch.no_grad():
            model.get_decoder().embed_tokens.weight[int(batch["input_ids"][0, 0])] = float("nan")
        with pytest.raises(ValueError, match=message), apply(model, "macs", **TIGHT):
            logits(model, batch)


def test_patching_nothing_is_an_error():
    dense = tiny.qwen(dense=(0, 1, 2))
    for model, said in ((dense, "no mixture-of-experts layer"), (torch.nn.Linear(2, 2), "not a transformers model")):
        with pytest.raises(ValueError, match=said):
            with apply(model, "macs"):
                pass
    assert hooks_on(dense) == 0


@pytest.mark.parametrize(
    "arguments, said",
    [
        ({"policy": "fast"}, "policy is 'fast'"),
        ({"gama": 1.0}, "no field 'gama'"),
        ({"gamma": float("nan")}, "gamma is nan"),
        ({"ep_size": 3}, "does not divide 8 experts"),
        ({"modality": {0: [0] * 8}}, "no layer 2"),
        ({"modality": {0: [0] * 7, 2: [0] * 8}}, "layer 0"),
        ({"modality": {0: [2] * 8, 2: [0] * 8}}, "layer 0"),
    ],
)
def test_bad_arguments_are_refused_in_one_sentence(qwen, arguments, said):
    with pytest.raises(ValueError, match=said) as error:
        with apply(qwen.model, **arguments):
            pass
    assert "\n" not in str(error.value) and hooks_on(qwen.model) == 0


def test_a_router_that_cannot_be_read_is_refused(qwen):
    def square(module, args, output):
        return output[0], output[1] ** 2, output[2]

    handle = dissect(qwen.model).layers[0].router.register_forward_hook(square)
    with pytest.raises(ValueError, match="not proportional"), apply(qwen.model, "macs"):
        logits(qwen.model, qwen.batch)
    handle.remove()


def test_a_users_own_model_outside_the_app(qwen):
    with macs.apply(qwen.model, policy="macs", gamma=1.0) as run:
        qwen.model.generate(**qwen.batch, max_new_tokens=2, do_sample=False)
    assert run.trace.policy == macs.preset("macs", gamma=1.0) and run.trace.grids == ((3, 4),)
