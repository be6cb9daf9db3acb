"""Single layers that have gone wrong elsewhere, degenerate ones, and arguments that must be refused."""

import math

import pytest
import torch

from macs.config import Policy, preset
from macs.core import DROPPED, KEPT, PADDING, REROUTED, check_values, schedule


def call(scores, *, policy: Policy, ep_size: int = 1, top_k: int = 1, **changes) -> dict:
    """Arguments of `schedule` for text tokens with these scores and a router that normalises its top-k."""
    scores_TN = torch.as_tensor(scores)
    tokens, num_experts = scores_TN.shape
    weight_TK, expert_TK = (part[:, :top_k] for part in torch.sort(scores_TN, dim=-1, descending=True, stable=True))
    arguments = {
        "scores_TN": scores_TN,
        "expert_TK": expert_TK,
        "weight_TK": weight_TK / weight_TK.sum(-1, keepdim=True),
        "token_weight_T": torch.ones(tokens),
        "visual_T": torch.zeros(tokens, dtype=torch.bool),
        "valid_T": torch.ones(tokens, dtype=torch.bool),
        "policy": policy,
        "ep_size": ep_size,
        "modality_N": torch.zeros(num_experts, dtype=torch.int8),
    }
    return {**arguments, **changes}


def random_scores(tokens: int, num_experts: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(tokens, num_experts, generator=torch.Generator().manual_seed(seed)).softmax(-1)


def test_the_example_in_the_docstring() -> None:
    scores = [[0.9, 0.05, 0.03, 0.02], [0.5, 0.15, 0.3, 0.05]]  # a second token fills expert 0
    expert_TK, weight_TK = torch.tensor([[0, 3], [0, 2]]), torch.tensor([[0.9, 0.02], [0.625, 0.375]])
    routing = {"expert_TK": expert_TK, "weight_TK": weight_TK, "ep_size": 2}
    dropped = schedule(**call(scores, policy=preset("macs_no_reroute"), **routing))
    assert dropped.expert_TC[1].tolist() == [4, 2] and dropped.status_TC[1].tolist() == [DROPPED, KEPT]
    torch.testing.assert_close(dropped.weight_TC[1], torch.tensor([0.0, 1.0]))
    moved = schedule(**call(scores, policy=preset("macs"), **routing))
    assert moved.expert_TC[1].tolist() == [1, 2] and moved.status_TC[1].tolist() == [REROUTED, KEPT]
    torch.testing.assert_close(moved.weight_TC[1], torch.tensor([1 / 3, 2 / 3]))


@pytest.mark.parametrize("name", ["token_drop", "expanded_drop", "macs_no_reroute", "macs"])
def test_c06_padding_takes_no_room_and_is_in_no_count(name: str) -> None:
    alone = call(random_scores(20, 8), policy=preset(name, gamma=0.5), ep_size=2, top_k=2)
    garbage = torch.full((580, 8), torch.nan)
    padded = {
        **alone,
        "scores_TN": torch.cat([garbage, alone["scores_TN"]]),
        "expert_TK": torch.cat([torch.full((580, 2), 99), alone["expert_TK"]]),
        "weight_TK": torch.cat([garbage[:, :2], alone["weight_TK"]]),
        "token_weight_T": torch.cat([garbage[:, 0], alone["token_weight_T"]]),
        "visual_T": torch.cat([torch.ones(580, dtype=torch.bool), alone["visual_T"]]),
        "valid_T": torch.cat([torch.zeros(580, dtype=torch.bool), alone["valid_T"]]),
    }
    want, got = schedule(**alone), schedule(**padded)
    assert (got.status_TC[:580] == PADDING).all() and (got.expert_TC[:580] == 8).all() and (got.weight_TC[:580] == 0).all()
    for field in ("expert_TC", "weight_TC", "status_TC"):
        assert torch.equal(getattr(got, field)[580:], getattr(want, field)), field
    for field in ("capacity_N", "visual_ratio", "tokens_before_N", "tokens_after_N", "effective_after_N"):
        assert torch.equal(getattr(got, field), getattr(want, field)), field
    assert int(got.tokens_before_N.sum()) == 20 * 2


@pytest.mark.parametrize("name", ["token_drop", "macs"])
def test_c08_one_decode_token_keeps_all_its_experts(name: str) -> None:
    got = schedule(**call(random_scores(1, 128), policy=preset(name, gamma=0.1), ep_size=8, top_k=8))
    assert (got.capacity_N == 1).all() and (got.status_TC == KEPT).all()


@pytest.mark.parametrize("renormalize", ["router", "always", "never"])
def test_c09_a_token_that_loses_everything_has_weight_zero_not_nan(renormalize: str) -> None:
    scores = torch.tensor([0.6, 0.3, 0.1]).repeat(5, 1)
    got = schedule(**call(scores, policy=preset("token_drop", gamma=0.0, renormalize=renormalize), top_k=2))
    assert (got.status_TC[0] == KEPT).all() and (got.status_TC[1:] == DROPPED).all()
    assert torch.isfinite(got.weight_TC).all() and not got.weight_TC[1:].any()


@pytest.mark.parametrize("router", ["softmax", "sigmoid"])
def test_c09_a_row_of_minus_infinity_is_reported_with_its_token(router: str) -> None:
    logits = torch.randn(6, 4)
    logits[2] = -torch.inf
    with pytest.raises(ValueError, match="token 2 cannot be scheduled"):
        schedule(**call(logits.softmax(-1) if router == "softmax" else logits.sigmoid(), policy=preset("macs"), top_k=2))


@pytest.mark.parametrize(
    ("field", "place", "value", "what"),
    [
        ("scores_TN", (3, 1), torch.nan, "router scores"),
        ("scores_TN", (3, 1), torch.inf, "router scores"),
        ("scores_TN", (3, 1), -0.5, "router scores"),
        ("weight_TK", (3, 1), torch.nan, "routing weights"),
        ("expert_TK", (3, 1), 4, "expert ids"),
        ("expert_TK", (3, 1), -1, "expert ids"),
        ("token_weight_T", (3,), torch.nan, "load weight"),
        ("token_weight_T", (3,), 1.5, "load weight"),
    ],
)
def test_c09_bad_numbers_are_reported_unless_they_are_paddings(field: str, place: tuple, value: float, what: str) -> None:
    arguments = call(random_scores(6, 4), policy=preset("macs"), ep_size=2, top_k=2)
    arguments[field] = arguments[field].clone()
    arguments[field][place] = value
    with pytest.raises(ValueError, match=f"{what} of token 3"):
        schedule(**arguments)
    arguments["valid_T"][3] = False
    got = schedule(**arguments)
    assert torch.isfinite(got.weight_TC).all() and torch.isfinite(got.effective_after_N).all()
    check_values(*(arguments[name] for name in ("scores_TN", "expert_TK", "weight_TK", "token_weight_T", "valid_T")))


@pytest.mark.parametrize("overflow", ["drop", "reroute", "expand"])
def test_c23_a_hot_expert_keeps_its_capacity_and_no_more(overflow: str) -> None:
    scores = torch.tensor([0.7, 0.15, 0.1, 0.05]).repeat(100, 1)
    got = schedule(**call(scores, policy=preset("token_drop", gamma=1.0, overflow=overflow)))
    kept_T = got.status_TC[:, 0] == KEPT
    assert kept_T.tolist() == [True] * 25 + [False] * 75  # equal scores: the first tokens
    after_N = {"drop": [25, 0, 0, 0], "reroute": [25, 25, 25, 25], "expand": [25, 25, 25, 25]}[overflow]
    assert got.tokens_after_N.tolist() == after_N
    assert int((got.status_TC == REROUTED).sum()) == (75 if overflow == "reroute" else 0)


@pytest.mark.parametrize(("second", "status"), [(0.5, KEPT), (0.5 + 0.9e-6, KEPT), (0.5 + 1.1e-6, DROPPED)])
def test_a_running_sum_may_pass_the_capacity_by_a_millionth(second: float, status: int) -> None:
    arguments = call([[1.0], [0.9]], policy=preset("macs_no_reroute", capacity="static", gamma=0.75))  # capacity 1.5
    arguments["token_weight_T"] = torch.tensor([1.0, second], dtype=torch.float64)
    assert schedule(**arguments).status_TC.tolist() == [[KEPT], [status]]


def test_rerouting_asks_no_expert_below_the_least_affinity() -> None:
    scores = torch.tensor([0.7, 0.15, 0.1, 0.05]).repeat(100, 1)
    policy = preset("macs", gamma=1.0, capacity="static", load="tokens", min_affinity=0.2)
    got = schedule(**call(scores, policy=policy))  # 0.15 / 0.7 = 0.21, 0.1 / 0.7 = 0.14
    assert got.tokens_after_N.tolist() == [25, 25, 0, 0]


def test_a_pair_whose_own_score_is_zero_weighs_nothing_where_it_goes() -> None:
    routing = {"expert_TK": torch.tensor([[0], [0]]), "weight_TK": torch.tensor([[0.5], [0.5]])}
    got = schedule(**call([[0.0, 0.5], [0.0, 0.5]], policy=preset("macs", gamma=0.0, renormalize="never"), **routing))
    assert got.status_TC.tolist() == [[KEPT], [REROUTED]] and got.weight_TC.tolist() == [[0.5], [0.0]]


@pytest.mark.parametrize("name", ["vanilla", "token_drop", "expanded_drop", "macs"])
def test_a_batch_without_tokens_has_an_empty_schedule(name: str) -> None:
    got = schedule(**call(torch.empty(0, 8), policy=preset(name), ep_size=2, top_k=2))
    assert len(got.expert_TC) == 0 and (got.capacity_N == 1).all() and float(got.visual_ratio) == 0 and not got.tokens_after_N.any()


def test_capacity_follows_modality_and_the_share_of_visual_load() -> None:
    arguments = call(random_scores(40, 4), policy=preset("macs", gamma=1.0, rho=0.5), top_k=2)
    arguments["visual_T"][:30] = True
    arguments["token_weight_T"][:30] = 0.5
    arguments["modality_N"] = torch.tensor([1, -1, 0, 1])
    got = schedule(**arguments)
    ratio = 15 / 25
    assert math.isclose(float(got.visual_ratio), ratio, abs_tol=1e-12)
    expected = [20 * (1 + 0.5 * m * (ratio - 0.5)) for m in (1, -1, 0, 1)]
    torch.testing.assert_close(got.capacity_N, torch.tensor(expected, dtype=torch.float64))
    arguments["policy"] = preset("macs", capacity="static", capacity_basis="effective")
    torch.testing.assert_close(schedule(**arguments).capacity_N, torch.full((4,), 25 * 2 / 4, dtype=torch.float64))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"policy": {"gamma": 1}}, "pass a macs.config.Policy"),
        ({"ep_size": 3}, "ep_size is 3, which does not divide 4 experts; use one of 1, 2, 4."),
        ({"ep_size": 0}, "ep_size is 0"),
        ({"ep_size": 8}, "ep_size is 8"),
        ({"scores_TN": torch.ones(6, 4, dtype=torch.int64)}, "scores_TN is torch.int64"),
        ({"scores_TN": torch.ones(6)}, "scores_TN is torch.float32 of shape"),
        ({"scores_TN": torch.ones(6, 0)}, "scores_TN is torch.float32 of shape"),
        ({"expert_TK": torch.zeros(5, 2, dtype=torch.int64)}, "expert_TK is torch.int64 of shape"),
        ({"expert_TK": torch.zeros(6, 5, dtype=torch.int64)}, "expert_TK is torch.int64 of shape"),
        ({"expert_TK": torch.zeros(6, 2)}, "expert_TK is torch.float32"),
        ({"expert_TK": torch.zeros(6, 2, dtype=torch.bool)}, "expert_TK is torch.bool"),
        ({"weight_TK": torch.zeros(6, 1)}, "weight_TK is torch.float32 of shape"),
        ({"token_weight_T": torch.ones(5)}, "token_weight_T is torch.float32 of shape"),
        ({"visual_T": torch.ones(6)}, "visual_T is torch.float32"),
        ({"valid_T": torch.ones(7, dtype=torch.bool)}, "valid_T is torch.bool of shape"),
        ({"modality_N": None}, 'use capacity="static"'),
        ({"modality_N": torch.zeros(3)}, "modality_N is torch.float32 of shape"),
    ],
)
def test_bad_arguments_are_refused_in_one_sentence(changes: dict, sentence: str) -> None:
    with pytest.raises(ValueError) as caught:
        schedule(**{**call(random_scores(6, 4), policy=preset("macs"), ep_size=2, top_k=2), **changes})
    assert sentence in str(caught.value) and "\n" not in str(caught.value)
