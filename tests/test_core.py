"""The core against the loop reference on random layers, and what must hold for every policy."""

import random

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from macs.config import CHOICES, PRESETS, Policy, preset
from macs.core import DROPPED, EXPANDED, KEPT, PADDING, REROUTED, UNUSED, feature_entropy, modality_groups, schedule, token_weights
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
    )


def layer(*, seed: int, shape: tuple[int, int], top_k: int, content: str, router: str, dtype: torch.dtype, policy: Policy) -> dict:
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
    plain = {name: call[name].tolist() for name in ("scores_TN", "expert_TK", "weight_TK", "token_weight_T", "visual_T", "valid_T")}
    return reference.schedule(
        *plain.values(),
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
        "content": st.sampled_from(CONTENTS),
        "router": st.sampled_from(ROUTERS),
        "dtype": st.sampled_from(DTYPES),
        "policy": policies(),
    }
)


@settings(max_examples=1000, deadline=None, derandomize=True)
@given(layers)
def test_core_agrees_with_the_loop_reference(drawn: dict) -> None:
    call = layer(**drawn)
    got, expected = schedule(**call), expected_of(call)
    assert got.expert_TC.tolist() == expected["expert"]
    assert got.status_TC.tolist() == expected["status"]
    numbers = {name: getattr(got, f"{name}_N") for name in ("capacity", "tokens_before", "tokens_after", "effective_before", "effective_after")}
    for name, value in {**numbers, "visual_ratio": got.visual_ratio}.items():
        torch.testing.assert_close(value.double(), torch.tensor(expected[name], dtype=torch.float64), rtol=1e-12, atol=1e-9, msg=name)
    weight_TC = torch.tensor(expected["routing_weight"], dtype=torch.float64)
    rounding = 2 * torch.finfo(call["weight_TK"].dtype).eps
    torch.testing.assert_close(got.weight_TC.double(), weight_TC, rtol=rounding, atol=rounding)
