"""The core against the loop reference on random layers, and what must hold under every policy."""

import importlib
import random
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from macs.config import CHOICES, PRESETS, Policy, preset
from macs.core import DROPPED, EXPANDED, KEPT, PADDING, REROUTED, UNUSED, schedule, schedule_layers, token_weights
from tests import reference

SHAPES = [(4, 1), (4, 2), (4, 4), (6, 3), (8, 2), (8, 4), (8, 8), (12, 4), (16, 1), (16, 16)]  # (N, G)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
CONTENTS = ("mixed", "text", "visual", "one_token", "all_padding_but_one", "all_padding")
ROUTERS = ("spread", "skewed", "one_hot_expert", "ties", "zeros")


@st.composite
def policies(draw) -> Policy:
    chosen = {name: draw(st.sampled_from(options)) for name, options in CHOICES.items()}
    chosen["overflow"] = draw(st.sampled_from(("none", "drop", "reroute", "reroute", "expand")))
    return Policy(
        **chosen,
        gamma=draw(st.sampled_from((0.0, 0.1, 0.5, 0.8, 1.0, 1.5, 1e6))),
        delta=draw(st.sampled_from((0.0, 0.5, 1.0, 2.0, 100.0))),
        rho=draw(st.sampled_from((0.0, 0.5, 1.0, 2.0))),
        min_affinity=draw(st.sampled_from((0.0, 0.1, 0.3, 1.0))),
        seed=draw(st.sampled_from((0, 1, 2**31 - 1))),
    )


def layer(*, seed: int, shape: tuple, top_k: int, content: str, router: str, dtype: torch.dtype, policy: Policy) -> dict:
    """Return the arguments of `schedule` for one random layer."""
    chance = random.Random(seed)
    num_experts, ep_size = shape
    top_k = min(top_k, num_experts)
    tokens = 1 if content == "one_token" else chance.randint(2, 24)
    image = [chance.choice((-1, 0, 1)) if content == "mixed" else -1 if content == "text" else 0 for _ in range(tokens)]
    valid = [chance.random() < 0.9 for _ in range(tokens)]
    if content.startswith("all_padding"):
        valid = [content.endswith("one") and t == tokens // 2 for t in range(tokens)]
    rows = [router_row(chance, router, num_experts) for _ in range(tokens)]
    scores_TN = torch.tensor(rows, dtype=torch.float64).softmax(-1).to(dtype)
    if router == "zeros":
        scores_TN = scores_TN * (torch.rand(scores_TN.shape, generator=torch.Generator().manual_seed(seed)) < 0.5)
    weight_TK, expert_TK = (part[:, :top_k] for part in torch.sort(scores_TN, dim=-1, descending=True, stable=True))
    swapped = torch.tensor(chance.sample(range(top_k), top_k))  # routers need not sort their slots
    weight_TK, expert_TK = weight_TK[:, swapped], expert_TK[:, swapped]
    image_T, valid_T = torch.tensor(image), torch.tensor(valid)
    entropy_T = torch.tensor([chance.choice((1.0, 2.0, chance.random())) for _ in image])
    visible_T = image_T.masked_fill(~valid_T, -1)
    w_T = token_weights(entropy_T, visible_T, delta=policy.delta, eps=policy.eps, normalize=policy.normalize)
    return {
        "scores_TN": scores_TN,
        "expert_TK": expert_TK,
        "weight_TK": weight_TK.contiguous(),
        "token_weight_T": w_T,
        "visual_T": image_T >= 0,
        "valid_T": valid_T,
        "policy": policy,
        "ep_size": ep_size,
        "modality_N": torch.tensor([chance.choice((-1, 0, 1)) for _ in range(num_experts)], dtype=torch.int8),
        "router_normalizes": chance.random() < 0.5,
    }


def router_row(chance: random.Random, router: str, num_experts: int) -> list[float]:
    if router == "ties":
        return [float(chance.randint(0, 2)) for _ in range(num_experts)]
    if router == "one_hot_expert":
        return [30.0 * (j == 0) + chance.random() for j in range(num_experts)]
    return [chance.gauss(0, 1) + (2.0 if router == "skewed" and j < 2 else 0.0) for j in range(num_experts)]


def expected_of(call: dict) -> dict:
    names = ("scores_TN", "expert_TK", "weight_TK", "token_weight_T", "visual_T", "valid_T")
    return reference.schedule(
        *(call[name].tolist() for name in names),
        policy=call["policy"].to_dict(),
        ep_size=call["ep_size"],
        modality=call["modality_N"].tolist(),
        router_normalizes=call["router_normalizes"],
    )


layers = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32),
        "shape": st.sampled_from(SHAPES),
        "top_k": st.integers(1, 5),
        "router": st.sampled_from(ROUTERS),
        "dtype": st.sampled_from(DTYPES),
        "policy": policies(),
    }
)
thorough = partial(settings, deadline=None, derandomize=True, database=None)


@pytest.mark.parametrize("content", CONTENTS)
@thorough(max_examples=200)
@given(drawn=layers)
def test_core_agrees_with_the_loop_reference(content: str, drawn: dict) -> None:
    call = layer(content=content, **drawn)
    got, expected = schedule(**call), expected_of(call)
    assert got.expert_TC.tolist() == expected["expert"]
    assert got.status_TC.tolist() == expected["status"]
    for name in ("capacity", "tokens_before", "tokens_after", "effective_before", "effective_after"):
        close(getattr(got, f"{name}_N"), expected[name])
    close(got.visual_ratio, expected["visual_ratio"])
    close(got.weight_TC, expected["routing_weight"], 2 * torch.finfo(call["weight_TK"].dtype).eps)


def close(got: torch.Tensor, expected: list, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(got.double(), torch.tensor(expected, dtype=torch.float64), rtol=1e-12 + tolerance, atol=tolerance)


@thorough(max_examples=200)
@given(drawn=layers, content=st.sampled_from(CONTENTS))
def test_pairs_fates_and_loads_add_up(content: str, drawn: dict) -> None:
    call = layer(content=content, **drawn)
    got, policy, valid_T = schedule(**call), call["policy"], call["valid_T"]
    (tokens, num_experts), top_k = call["scores_TN"].shape, call["expert_TK"].shape[1]
    fate = {code: int((got.status_TC == code).sum()) for code in range(6)}
    assert fate[KEPT] + fate[REROUTED] + fate[DROPPED] == int(valid_T.sum()) * top_k
    assert fate[PADDING] == int((~valid_T).sum()) * got.status_TC.shape[1]
    assert int(got.tokens_before_N.sum()) == int(valid_T.sum()) * top_k
    assert int(got.tokens_after_N.sum()) == fate[KEPT] + fate[REROUTED] + fate[EXPANDED]
    idle_TC = got.expert_TC == num_experts
    assert torch.equal(idle_TC, torch.isin(got.status_TC, torch.tensor([DROPPED, PADDING, UNUSED], dtype=torch.int8)))
    assert not got.weight_TC[idle_TC].any() and torch.isfinite(got.weight_TC).all()
    for row, idle in zip(got.expert_TC, idle_TC):  # no token is sent to one expert twice
        assert len(set(row[~idle].tolist())) == int((~idle).sum())
    if policy.overflow != "none":
        load_N = got.effective_after_N if policy.load == "entropy" else got.tokens_after_N
        assert (load_N <= got.capacity_N + 1e-6 + 1e-9).all() and (got.capacity_N >= 1).all()


@thorough(max_examples=200)
@given(drawn=layers)
def test_a_pair_stays_on_its_rank_and_the_rank_gets_no_more_than_before(drawn: dict) -> None:
    drawn["policy"] = drawn["policy"].with_(overflow="reroute")
    call = layer(content="mixed", **drawn)
    got, per_rank = schedule(**call), call["scores_TN"].shape[1] // call["ep_size"]
    moved_TK = got.status_TC == REROUTED
    assert torch.equal(got.expert_TC[moved_TK] // per_rank, call["expert_TK"][moved_TK] // per_rank)
    before_G, after_G = (load_N.view(call["ep_size"], per_rank).sum(1) for load_N in (got.tokens_before_N, got.tokens_after_N))
    assert (after_G <= before_G).all()


@pytest.mark.parametrize("renormalize", ["router", "always", "never"])
@pytest.mark.parametrize("name", PRESETS)
def test_with_room_for_all_nothing_changes_by_a_bit(name: str, renormalize: str) -> None:
    policy = preset(name, gamma=1e6, renormalize=renormalize)
    call = layer(seed=3, shape=(16, 4), top_k=5, content="mixed", router="skewed", dtype=torch.bfloat16, policy=policy)
    call["expert_TK"] = call["expert_TK"].to(torch.int32)
    if name == "expanded_drop":  # with room for all it adds candidates; none are left when the top-k is everything
        call["ep_size"], call["expert_TK"] = 16, torch.arange(16).expand(len(call["valid_T"]), 16)
        call["weight_TK"] = call["scores_TN"]
    got, valid_T = schedule(**call), call["valid_T"]
    top_k = call["expert_TK"].shape[1]
    assert torch.equal(got.expert_TC[valid_T, :top_k], call["expert_TK"][valid_T].long())
    assert torch.equal(got.weight_TC[valid_T, :top_k], call["weight_TK"][valid_T])
    assert got.expert_TC.dtype == torch.int64 and got.weight_TC.dtype == torch.bfloat16 and got.status_TC.dtype == torch.int8


@thorough(max_examples=100)
@given(drawn=layers)
def test_same_input_same_bits_and_an_accelerators_rounds_decide_the_same(drawn: dict) -> None:
    call = layer(content="mixed", **drawn)
    first, again = schedule(**call), schedule(**call)
    module = importlib.import_module("macs.core.schedule")  # the package's name `schedule` is the function
    original = module.reroute
    module.reroute = lambda *args, **settings: original(*args, **{**settings, "shrink": False})
    try:
        full_rounds = schedule(**call)
    finally:
        module.reroute = original
    for name, value in vars(first).items():
        assert torch.equal(value, getattr(again, name)) and torch.equal(value, getattr(full_rounds, name)), name


@pytest.mark.parametrize("name", PRESETS)
def test_on_an_accelerator_nothing_makes_the_host_wait(name: str) -> None:
    policy = preset(name, min_affinity=0.3)
    call = layer(seed=1, shape=(8, 2), top_k=2, content="mixed", router="skewed", dtype=torch.float32, policy=policy)
    # The meta device has shapes but no data: whatever the host would have to wait for raises an error there.
    got = schedule(**{key: value.to("meta") if isinstance(value, torch.Tensor) else value for key, value in call.items()})
    expected = schedule(**call)
    assert [value.shape for value in vars(got).values()] == [value.shape for value in vars(expected).values()]


@thorough(max_examples=100)
@given(drawn=layers)
def test_half_precision_scores_decide_as_the_same_numbers_in_double(drawn: dict) -> None:
    call = layer(content="mixed", **{**drawn, "dtype": torch.bfloat16})
    half, double = schedule(**call), schedule(**{**call, "scores_TN": call["scores_TN"].double()})
    assert torch.equal(half.expert_TC, double.expert_TC) and torch.equal(half.status_TC, double.status_TC)


def test_slots_of_a_router_may_come_in_any_order() -> None:
    policy = preset("macs", gamma=0.5)
    call = layer(seed=7, shape=(8, 2), top_k=3, content="mixed", router="skewed", dtype=torch.float64, policy=policy)
    turned = {**call, "expert_TK": call["expert_TK"].flip(1), "weight_TK": call["weight_TK"].flip(1)}
    got, other = schedule(**call), schedule(**turned)
    assert torch.equal(got.expert_TC, other.expert_TC.flip(1)) and torch.equal(got.status_TC, other.status_TC.flip(1))


@pytest.mark.parametrize("priority", CHOICES["priority"])
@pytest.mark.parametrize("overflow", CHOICES["overflow"])
def test_many_layers_at_once_are_decided_as_one_by_one(overflow: str, priority: str) -> None:
    policy = preset("macs", gamma=0.5, overflow=overflow, priority=priority, min_affinity=0.2)
    drawn = (layer(seed=seed, shape=(8, 2), top_k=3, content="mixed", router="skewed", dtype=torch.float32, policy=policy) for seed in range(60))
    tokens = 12
    calls = [call for call in drawn if len(call["scores_TN"]) >= tokens][:5]
    names = ("scores_TN", "expert_TK", "weight_TK", "token_weight_T")
    same = {"visual_T": calls[0]["visual_T"][:tokens], "valid_T": calls[0]["valid_T"][:tokens], "policy": policy, "ep_size": 2}
    alone = [schedule(**{name: call[name][:tokens] for name in names}, **same, modality_N=call["modality_N"]) for call in calls]
    stacked = [torch.stack([call[name][:tokens] for call in calls]) for name in names]
    together = schedule_layers(*stacked, **same, modality_LN=torch.stack([call["modality_N"] for call in calls]))
    assert len(calls) == 5 and (overflow == "none") != any((one.status_TC == DROPPED).any() for one in alone)
    for one, other in zip(alone, together, strict=True):
        for name, value in vars(one).items():
            assert torch.equal(value, getattr(other, name)), name
