"""Cases C04 to C25: routing that went wrong elsewhere, in the scheduler and through a model of one process."""

import math
import os

import numpy as np
import pytest
import torch

from macs.config import preset
from macs.core import DROPPED, KEPT, REROUTED, feature_entropy, schedule, token_weights
from macs.engine.local import LocalEngine
from macs.engine.start import start
from macs.model import apply, check_ranks
from macs.model.anatomy import dissect
from macs.view import maps
from macs.view.words import Words
from tests import tiny
from tests.hooked import hooks_on, logits, prompts, watch
from tests.processes import children


@pytest.fixture(scope="module")
def qwen():
    return tiny.case("qwen3_vl_moe")


def config_alone(folder, **text):
    """A folder whose weight file would fail if anything read it."""
    tiny.qwen(**text).config.save_pretrained(folder)
    (folder / "model.safetensors").write_bytes(b"not a weight file")
    return str(folder)


def test_C04_ranks_that_do_not_divide_the_experts_are_refused_before_anything_starts(tmp_path):
    for name, experts, wrong, sizes in (("six", 6, 4, "1, 2, 3, 6"), ("eight", 8, 16, "1, 2, 4, 8")):
        folder = config_alone(tmp_path / name, num_experts=experts, num_experts_per_tok=2)
        before = children(os.getpid())
        with pytest.raises(ValueError, match=f"^ranks is {wrong}, which does not divide {experts} experts; use one of {sizes}.$"):
            start(folder, wrong, device="cpu")
        for ep_size in (wrong, 0, -1):
            with pytest.raises(ValueError, match=f"^ep_size is {ep_size}, which does not divide {experts} experts; use one of {sizes}.$"):
                LocalEngine(folder, ep_size=ep_size)
        with pytest.raises(ValueError, match="^ranks is 0; use auto, 1, or a number that divides the model's experts.$"):
            start(folder, 0, device="cpu")
        assert children(os.getpid()) == before


def test_C04_few_key_value_heads_do_not_limit_the_ranks(tmp_path):
    """That 4 ranks also run such a model is in tests/test_cases_ranks.py."""
    assert tiny.qwen().config.text_config.num_key_value_heads == 2
    for ranks in (4, 8):
        check_ranks(config_alone(tmp_path), ranks)


def beside(*lengths, pad_to):
    """Prompts of these lengths in one batch, padded on the left."""
    rows = [[256] * (pad_to - n) + np.random.default_rng(n).integers(32, 120, n).tolist() for n in lengths]
    ids = torch.tensor(rows)
    return {"input_ids": ids, "attention_mask": (ids != 256).long()}


def short_request(model, batch, policy, **fields):
    """The answer to the first prompt of a batch, and each layer's routed and dropped pairs of its 20 tokens by expert."""
    with apply(model, policy, ep_size=2, **fields) as run:
        ids = model.generate(**batch, max_new_tokens=4, min_new_tokens=4, do_sample=False)
    own_T = run.trace.tokens.valid_T & (run.trace.tokens.sequence_T == 0)
    loads = [np.bincount(layer.expert_TK[own_T].flatten(), minlength=tiny.EXPERTS).tolist() for layer in run.trace.layers]
    drops = [(layer.decision.status_TC[own_T] == DROPPED).tolist() for layer in run.trace.layers]
    return ids[0, -4:].tolist(), loads, drops, run.trace


def test_C06_padding_is_in_no_count_and_a_neighbour_changes_nothing_but_the_capacity(qwen):
    """A 20-token request alone, left-padded, and left-padded beside one of 600.

    Padding alone changes nothing: capacity, loads, drops and answer are the request's own. Beside a neighbour its loads
    and, without drops, its answer stay, and Σ load = real tokens × k. The capacity is then the batch's, by definition:
    T in γ·T·K/N counts the tokens of one forward batch that are not padding (MACS eq. 3, CAI-MoE), for it is the batch
    that the expert works on; a capacity per request would be another method.
    """
    alone = short_request(qwen.model, beside(20, pad_to=20), "token_drop", gamma=0.5)
    padded = short_request(qwen.model, beside(20, pad_to=600), "token_drop", gamma=0.5)
    assert alone[:3] == padded[:3] and any(map(np.any, alone[2]))
    for one, other in zip(alone[3].layers, padded[3].layers, strict=True):
        assert (one.decision.capacity_N == math.ceil(0.5 * 20 * tiny.TOP_K / tiny.EXPERTS)).all()
        assert np.array_equal(one.decision.capacity_N, other.decision.capacity_N)
        assert np.array_equal(one.decision.tokens_after_N, other.decision.tokens_after_N) and other.pairs == 20 * tiny.TOP_K
    roomy = short_request(qwen.model, beside(20, pad_to=20), "token_drop", gamma=100.0)
    neighbour = short_request(qwen.model, beside(20, 600, pad_to=600), "token_drop", gamma=100.0)
    assert roomy[:3] == neighbour[:3] and not any(map(np.any, roomy[2]))
    for layer in neighbour[3].layers:
        assert layer.decision.tokens_before_N.sum() == layer.pairs == 620 * tiny.TOP_K == layer.kept
    with apply(qwen.model, "token_drop", ep_size=2, gamma=0.5) as tight:
        logits(qwen.model, beside(20, 600, pad_to=600))
    for layer in tight.trace.layers:
        assert (layer.decision.capacity_N == math.ceil(0.5 * 620 * tiny.TOP_K / tiny.EXPERTS)).all()
        assert layer.kept + layer.dropped == 620 * tiny.TOP_K and (layer.decision.tokens_after_N <= layer.decision.capacity_N).all()
        assert (layer.decision.expert_TC[:580] == tiny.EXPERTS).all() and not layer.decision.weight_TC[:580].any()


def loops(ids, period=8):
    """Whether the second half of an answer only repeats a few tokens in turn."""
    tail = ids[len(ids) // 2 :]
    return any(tail[n:] == tail[:-n] for n in range(1, period + 1))


def test_C08_one_decode_token_keeps_its_experts_whatever_gamma():
    """γ·T·k/N is 0.006, and the least capacity is one pair: decode steps of one sequence are as the router made them."""
    model, answers = tiny.qwen(num_experts=128, num_experts_per_tok=8, num_hidden_layers=1, dense=()), {}
    batch = prompts(1)
    for phase in ("prefill", "all"):  # decode steps bypassed, which is the default, and scheduled
        with apply(model, "macs", gamma=0.1, ep_size=8, phase=phase) as run:
            seen, handle = watch(dissect(model).layers[0].experts, inputs=True)
            answers[phase] = model.generate(**batch, max_new_tokens=64, min_new_tokens=64, do_sample=False)[0, 12:].tolist()
        handle.remove()
        assert run.decode_steps == 63 and run.trace.layers[0].dropped > 0
        assert all((ids != 128).all() and ids.shape == (1, 8) and len(set(ids[0].tolist())) == 8 for _, ids, _ in seen[1:])
    baseline = model.generate(**batch, max_new_tokens=64, min_new_tokens=64, do_sample=False)[0, 12:].tolist()
    assert answers["prefill"] == answers["all"] and len(answers["all"]) == 64
    assert not loops(answers["all"]) or loops(baseline)


def test_C09_tokens_that_lose_every_expert_keep_residual_and_shared_expert():
    """γ = 0 leaves each expert its floor of one pair; the page says how many tokens have none."""
    case = tiny.case("glm4v_moe")
    layer = dissect(case.model).layers[0]
    block = next(module for module in case.model.modules() if getattr(module, "experts", None) is layer.experts)
    seen = []
    handle = block.register_forward_hook(lambda module, args, output: seen.append((args[0], output)))
    with apply(case.model, "token_drop", gamma=0.0, ep_size=2) as run:
        assert logits(case.model, case.batch).isfinite().all()
    handle.remove()
    decision = run.trace.layers[0].decision
    assert decision.tokens_after_N.max() == 1 and np.isfinite(decision.weight_TC).all()
    lost_T = torch.from_numpy((decision.status_TC == DROPPED).all(1))
    (hidden_BSD, output_BSD) = seen[0]
    with torch.no_grad():
        shared_TD = block.shared_experts(hidden_BSD).flatten(0, 1)
    assert lost_T.sum() >= len(lost_T) - tiny.EXPERTS > 0
    assert torch.equal(output_BSD.flatten(0, 1)[lost_T], shared_TD[lost_T]) and not torch.equal(output_BSD.flatten(0, 1), shared_TD)
    assert f"<b>{int(lost_T.sum())}</b> tokens lost every expert" in maps.loss_text(run.trace, 0, Words("en"))


@pytest.mark.parametrize("name", ["vanilla", "macs"])
@pytest.mark.parametrize("bad", ["row of -inf", "one NaN"])
def test_C09_scores_that_are_no_numbers_are_reported_and_not_spread(qwen, name, bad):
    router = dissect(qwen.model).layers[0].router
    before, hooks = logits(qwen.model, qwen.batch), hooks_on(qwen.model)

    def spoil(module, args, output):
        logits_TN = output[0].clone()
        logits_TN[3, slice(None) if bad == "row of -inf" else 5] = -torch.inf if bad == "row of -inf" else torch.nan
        weight_TK, expert_TK = logits_TN.softmax(-1).topk(tiny.TOP_K)
        return logits_TN, weight_TK / weight_TK.sum(-1, keepdim=True), expert_TK

    handle = router.register_forward_hook(spoil)
    with pytest.raises(ValueError, match="^The router scores of token 3 cannot be scheduled; they must be finite and not negative.$"):
        with apply(qwen.model, name, gamma=0.5, ep_size=2):
            logits(qwen.model, qwen.batch)
    handle.remove()
    assert hooks_on(qwen.model) == hooks and torch.equal(logits(qwen.model, qwen.batch), before)


@pytest.mark.parametrize("overflow, after", [("drop", [25, 0, 0, 0]), ("reroute", [25, 25, 25, 25])])
def test_C23_a_hot_expert_keeps_25_of_100_and_no_more(overflow, after):
    scores_TN = torch.tensor([0.7, 0.15, 0.1, 0.05]).repeat(100, 1)
    zeros_T, all_T = torch.zeros(100, dtype=torch.bool), torch.ones(100, dtype=torch.bool)
    for load in ("tokens", "entropy"):  # every weight is 1, so both loads are the count
        policy = preset("token_drop", gamma=1.0, overflow=overflow, load=load)
        got = schedule(scores_TN, torch.zeros(100, 1, dtype=torch.long), torch.ones(100, 1), torch.ones(100), zeros_T, all_T, policy=policy, ep_size=1)
        assert (got.capacity_N == 25).all() and got.tokens_after_N.tolist() == after
        assert got.status_TC[:25].eq(KEPT).all() and got.status_TC[25:].eq(REROUTED if overflow == "reroute" else DROPPED).all()
        assert got.tokens_before_N.tolist() == [100, 0, 0, 0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_C25_entropy_of_one_hot_extreme_and_flat_features_is_0_0_and_log_n(dtype):
    one_hot = torch.full((1, 64), -torch.inf, dtype=dtype).index_fill(1, torch.tensor([3]), 0.0)
    extreme = torch.full((1, 64), -65504.0, dtype=dtype).index_fill(1, torch.tensor([3]), 65504.0)
    entropy_T = feature_entropy(torch.cat([one_hot, extreme, torch.zeros(1, 64, dtype=dtype)]))
    assert entropy_T[:2].tolist() == [0.0, 0.0] and float(entropy_T[2]) == pytest.approx(math.log(64))
    for normalize in ("image", "batch"):
        w_T = token_weights(entropy_T, torch.tensor([0, 0, 0]), delta=1.0, normalize=normalize)
        assert torch.isfinite(w_T).all() and w_T[0] == w_T[1] > 0.5 > w_T[2] > 0


def test_C25_an_image_of_one_visual_token_weighs_half_in_a_run():
    model, batch = tiny.qwen(), tiny.merged_batch(2, 2)
    for source in ("first", "layer", "embedding"):
        with apply(model, "macs", ep_size=2, gamma=0.5, entropy_source=source, inputs=batch, modality={0: [1, -1] * 4, 2: [0] * 8}) as run:
            assert logits(model, batch).isfinite().all()
        visual_T = run.trace.tokens.visual_T
        assert visual_T.sum() == 1 and run.trace.grids == ((1, 1),)
        for layer in run.trace.layers:
            assert layer.decision.token_weight_T[visual_T] == [0.5] and np.isfinite(layer.decision.capacity_N).all()
            assert layer.decision.visual_ratio == pytest.approx(0.5 / (len(visual_T) - 0.5))
