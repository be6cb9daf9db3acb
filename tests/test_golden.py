"""The core against the answers of an independent implementation: ids and statuses exactly, numbers to 1e-9."""

import json
from pathlib import Path

import pytest
import torch

from macs.config import policy_from_dict
from macs.core import feature_entropy, schedule, token_weights

ROUNDING = 1e-9  # the files hold ten decimals


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    folder = metafunc.config.getoption("--golden")
    files = sorted(folder.glob("*.json"))
    if not files:
        raise pytest.UsageError(f"--golden {folder} holds no *.json file; name a folder of golden answers.")
    metafunc.parametrize("path", files, ids=[file.stem for file in files])


def test_core_reproduces_the_golden_answer(path: Path) -> None:
    case = json.loads(path.read_text())
    expected, policy = case["expected"], policy_from_dict(case["policy"])
    entropy_T = feature_entropy(torch.tensor(case["features"], dtype=torch.float64))
    image_T = torch.tensor(case["image_of_token"])
    valid_T = torch.tensor(case["valid"])
    settings = {"delta": policy.delta, "eps": policy.eps, "normalize": policy.normalize}
    w_T = token_weights(entropy_T, image_T.masked_fill(~valid_T, -1), **settings)
    scores_TN = torch.tensor(case["router_logits"], dtype=torch.float64).softmax(-1)
    top_TK, expert_TK = (part[:, : case["top_k"]] for part in torch.sort(scores_TN, dim=-1, descending=True, stable=True))
    got = schedule(
        scores_TN,
        expert_TK,
        top_TK / top_TK.sum(-1, keepdim=True),
        w_T,
        image_T >= 0,
        valid_T,
        policy=policy,
        ep_size=case["ep_size"],
        modality_N=torch.tensor(case["modality"]),
        router_normalizes=True,
    )

    assert got.expert_TC.tolist() == expected["expert"]
    assert got.status_TC.tolist() == expected["status"]
    close(entropy_T, expected["entropy"])
    close(w_T, expected["weight"])
    close(got.weight_TC, expected["routing_weight"])
    close(got.visual_ratio, expected["visual_ratio"])
    close(got.capacity_N, expected["capacity"])
    for name in ("tokens_before", "tokens_after", "effective_before", "effective_after"):
        close(getattr(got, f"{name}_N"), expected[name])


def close(got: torch.Tensor, expected: list) -> None:
    torch.testing.assert_close(got.double(), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=ROUNDING)
