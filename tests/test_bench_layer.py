"""``bench layer`` on a small layer: what is timed is the layer, and what is reported is what was timed."""

import json

import pytest
import torch

from macs.__main__ import main
from macs.config import PRESETS, preset
from macs.eval import bench_layer
from macs.eval.bench_layer import Bench, decide, equal_straggler_gamma, weigh
from macs.eval.bench_schedule import Sizes, skewed_layer
from macs.eval.shapes import Qwen3VLMoeTextExperts, Shape, qwen_config

SMALL = Shape(64, 24, 16, 4, Qwen3VLMoeTextExperts, qwen_config)
SIZES = Sizes(tokens=96, visual=72, experts=16, top_k=4, ranks=4, hidden=64, intermediate=24)


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(bench_layer, "SHAPES", {"small": SMALL})

    def run(*flags):
        code = main(["bench", "layer", "--shapes", "small", "--ranks", "4", "--dtype", "float32", "--device", "cpu", *flags])
        return code, capsys.readouterr()

    return run


def layer():
    return skewed_layer(SIZES, 0.8, 1), torch.randn(96, 64, generator=torch.Generator().manual_seed(2))


def test_the_table_and_the_json_line(run, tmp_path):
    code, printed = run("--tokens", "96", "64", "--gamma", "0.5", "1.5", "--repeats", "2", "--out", str(tmp_path / "a" / "layer.json"))
    assert code == 0
    lines = printed.out.strip().splitlines()
    report = json.loads(lines[-1])
    assert json.loads((tmp_path / "a" / "layer.json").read_text()) == report
    assert [entry["tokens"] for entry in report["layers"]] == [96, 64]
    assert {"machine", "versions", "command", "date", "routing"} <= set(report)
    for entry in report["layers"]:
        first, *others = entry["rows"]
        assert first["policy"] == "vanilla" and first["time_over_vanilla"] == 1.0 and first["schedule_seconds"] == 0.0
        assert {row["policy"] for row in others} == set(PRESETS) - {"vanilla"} | {"macs, effective"}
        for row in others:
            fullest, run = max(row["tokens_per_rank"]), [s for s in row["rank_seconds"] if s is not None]
            assert row["weigh_seconds"] > 0 and row["schedule_seconds"] > 0 and row["time_over_vanilla"] > 0
            assert row["rank_seconds"][row["slowest_rank"]] == max(run) and row["seconds"] == pytest.approx(row["schedule_seconds"] + max(run))
            for tokens, taken in zip(row["tokens_per_rank"], row["rank_seconds"], strict=True):
                assert (taken is None) == (tokens < 0.8 * fullest)
            assert row["modelled"] == pytest.approx(max(row["tokens_per_rank"]) / max(first["tokens_per_rank"]))
            assert row["straggler"] == pytest.approx(max(row["tokens_per_rank"]) / (entry["tokens"] * 4 / 4))
    assert sum("small: hidden 64" in line for line in lines) == 2


def test_what_is_timed_is_the_layer():
    bench, (tensors, hidden_TD) = Bench(SMALL, 4, torch.device("cpu"), torch.float32), layer()
    whole = SMALL.make(SMALL.config(SMALL, 16))
    whole.config._experts_implementation, whole._is_expert_parallel = "eager", True
    for name, weights in bench._weights.items():
        getattr(whole, name).data = weights
    with torch.inference_mode():
        for policy in (preset("vanilla"), preset("macs", gamma=0.6), preset("expanded_drop", gamma=0.6)):
            decision = decide(tensors, weigh(tensors, hidden_TD, policy), policy, 4)
            in_turn = sum(bench._share(hidden_TD, decision, rank) for rank in range(4))
            assert torch.allclose(in_turn, whole(hidden_TD, decision.expert_TC, decision.weight_TC), atol=1e-5)


@pytest.mark.parametrize("gamma", [0.4, 0.7, 1.0])
def test_the_baseline_is_given_the_straggler_load_of_macs(gamma):
    tensors, hidden_TD = layer()
    routed_N = tensors["expert_TK"].flatten().bincount(minlength=16)
    policy, ones_T = preset("macs", gamma=gamma), torch.ones(96)
    macs = decide(tensors, weigh(tensors, hidden_TD, policy), policy, 4).tokens_after_N.view(4, -1).sum(1).max()
    equal = equal_straggler_gamma(routed_N, int(macs), 96 * 4, 4)
    fullest = decide(tensors, ones_T, preset("token_drop", gamma=equal), 4).tokens_after_N.view(4, -1).sum(1).max()
    assert abs(int(fullest) - int(macs)) <= 4  # one step of an expert's capacity moves a rank of 4 experts by 4 at most


def test_bad_options_are_one_sentence(run):
    for flags in (["--ranks", "3"], ["--tokens", "2"], ["--gamma", "nan"], ["--shapes", "large"], ["--repeats", "0"]):
        code, printed = run(*flags)
        assert code == 2 and len(printed.err.strip().splitlines()) == 1 and "use" in printed.err.lower()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_the_schedule_takes_a_tenth_of_the_layer_at_most(capsys):
    assert main(["bench", "layer", "--shapes", "qwen3-vl-30b-a3b", "--tokens", "16384", "--gamma", "1"]) == 0
    (entry,) = json.loads(capsys.readouterr().out.strip().splitlines()[-1])["layers"]
    assert entry["host_syncs_of_a_schedule"] == 0
    assert next(row for row in entry["rows"] if row["policy"] == "macs")["schedule_over_layer"] <= 0.10
