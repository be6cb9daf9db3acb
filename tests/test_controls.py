"""The controls of the studies: random drop, lowest routing weight, shuffled entropies."""

import pytest
import torch

from macs.config import CONTROLS, PRESETS, policy_from_dict, preset
from macs.core import DROPPED
from macs.core.chance import chance
from macs.core.entropy import shuffled
from macs.model import apply
from tests.made import made_trace
from tests.tiny import merged_batch, qwen


@pytest.mark.parametrize("name", CONTROLS)
def test_a_control_is_a_policy_with_a_name(name):
    policy = preset(name, gamma=0.7, seed=3)
    assert policy.preset == name and policy_from_dict(policy.to_dict()) == policy
    assert not set(CONTROLS) & set(PRESETS)


@pytest.mark.parametrize("seed", [-1, 1.0, True, 2**31, None])
def test_a_seed_that_is_none_is_refused(seed):
    with pytest.raises(ValueError, match="use a whole number from 0 to 2147483647"):
        preset("random_drop", seed=seed)


def test_lots_are_even_repeatable_and_differ_by_seed_value_and_place():
    value = torch.rand(4000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    lot = chance(value, 1)
    assert torch.equal(lot, chance(value, 1)) and not (lot == chance(value, 2)).any() and not (lot == chance(value.flip(0), 1)).any()
    assert len(set(chance(torch.zeros(4000), 1).tolist())) == 4000 and 0 <= lot.min() and lot.max() < 1
    counts = torch.histc(lot, 10, 0, 1)
    assert counts.min() > 330 and counts.max() < 470  # 400 expected, deviation 19
    assert abs(torch.corrcoef(torch.stack([lot, value]))[0, 1]) < 0.05


def test_shuffled_entropies_keep_what_each_image_has_and_move_it():
    entropy_T = torch.arange(40.0)
    image_T = torch.tensor([-1] * 4 + [0] * 16 + [-1] * 4 + [1] * 16)
    dealt_T = shuffled(entropy_T, image_T, seed=5)
    for image in (0, 1):
        assert sorted(dealt_T[image_T == image].tolist()) == entropy_T[image_T == image].tolist()
        assert (dealt_T != entropy_T)[image_T == image].sum() > 8
    assert torch.equal(dealt_T[image_T < 0], entropy_T[image_T < 0])
    assert not torch.equal(dealt_T, shuffled(entropy_T, image_T, seed=6))


@pytest.mark.parametrize("name", ["random_drop", "lowest_weight_drop"])
def test_a_drop_control_keeps_token_drops_counts_and_drops_other_pairs(name):
    drop = made_trace(preset("token_drop", gamma=0.6))
    control = drop.reschedule(preset(name, gamma=0.6))
    for a, b in zip(drop.layers, control.layers):
        assert a.dropped > 0 and (a.decision.tokens_after_N == b.decision.tokens_after_N).all()
        assert (a.decision.status_TC != b.decision.status_TC).any()


def test_lowest_weight_drop_drops_the_lowest_weights_of_each_expert():
    trace = made_trace(preset("lowest_weight_drop", gamma=0.6))
    for layer in trace.layers:
        lost_TK = layer.decision.status_TC == DROPPED
        for expert in range(layer.num_experts):
            mine_TK = (layer.expert_TK == expert) & trace.tokens.valid_T[:, None]
            if (mine_TK & lost_TK).any() and (mine_TK & ~lost_TK).any():
                assert layer.weight_TK[mine_TK & lost_TK].max() <= layer.weight_TK[mine_TK & ~lost_TK].min()


def test_random_drop_draws_anew_in_every_layer_and_by_seed():
    def lost(seed):
        return [x.decision.status_TC == DROPPED for x in made_trace(preset("random_drop", gamma=0.6, seed=seed)).layers]

    first, other = lost(1), lost(2)
    assert (first[0] != first[1]).any() and (first[0] != other[0]).any()


def test_the_model_and_a_rescheduled_trace_agree_on_every_control():
    model, inputs = qwen(), merged_batch(6, 8)
    for name in CONTROLS:
        with torch.no_grad(), apply(model, name, gamma=0.5, ep_size=2, seed=4, inputs=inputs) as run:
            model(**inputs)
        again = run.trace.reschedule(run.trace.policy)
        assert all((a.decision.status_TC == b.decision.status_TC).all() for a, b in zip(run.trace.layers, again.layers))
        assert sum(layer.dropped for layer in run.trace.layers) > 0
