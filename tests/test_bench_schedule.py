"""The benchmark: its experts compute what experts compute, and its report can be read."""

import argparse
import json

import pytest
import torch
import torch.nn.functional as F

from macs.eval import bench_schedule as bench

SMALL = bench.Sizes(tokens=48, visual=32, experts=8, top_k=2, ranks=2, hidden=16, intermediate=24)


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize("product", [bench.grouped, bench.one_by_one])
def test_the_experts_compute_swiglu_of_every_pair(product) -> None:
    layer = bench.skewed_layer(SMALL, 0.5, 0)
    up, down, hidden_TD = torch.randn(8, 48, 16), torch.randn(8, 16, 24), torch.randn(48, 16)
    got_TD = bench.run_experts(hidden_TD, up, down, layer["weight_TK"], layer["expert_TK"], product)
    for token, expert_K in enumerate(layer["expert_TK"].tolist()):
        expected_D = torch.zeros(16)
        for slot, expert in enumerate(expert_K):
            gate, linear = (up[expert] @ hidden_TD[token]).chunk(2)
            expected_D += layer["weight_TK"][token, slot] * (down[expert] @ (F.silu(gate) * linear))
        torch.testing.assert_close(got_TD[token], expected_D, rtol=1e-4, atol=1e-4)


def test_the_report_is_a_table_and_one_json_line(capsys, monkeypatch) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)  # the other tests keep theirs
    code = bench.main(options("--repeats", "2"), SMALL)
    *lines, last = capsys.readouterr().out.strip().splitlines()
    report = json.loads(last)
    assert set(report["ratio"]) == {"token_drop", "expanded_drop", "macs"}
    fastest = min(report["seconds"]["experts"].values())
    for name, ratio in report["ratio"].items():
        assert ratio == report["seconds"][name] / fastest > 0
    assert report["met"] == {name: report["ratio"][name] <= bound for name, bound in bench.BOUNDS.items()}
    assert code == (0 if all(report["met"].values()) else 1)
    assert len(lines) == 2 + 3 + 6 and all(line.split()[0] in ("layer", "router", "experts", "policy") for line in lines)


def test_the_layer_of_the_benchmark_overflows_and_reroutes_at_gamma_one() -> None:
    sizes = bench.Sizes(tokens=512, visual=384)
    layer = bench.skewed_layer(sizes, options().skew, options().seed)
    row = bench.time_policy(layer, bench.preset("macs", gamma=1.0), sizes, repeats=1)
    assert row["rerouted"] > 0.1
    assert bench.time_policy(layer, bench.preset("token_drop", gamma=1.0), sizes, repeats=1)["dropped"] > 0.1


@pytest.mark.parametrize("words", [("--threads", "0"), ("--repeats", "-1"), ("--gamma", "nan"), ("--skew", "nan")])
def test_bad_options_are_refused(words: tuple) -> None:
    with pytest.raises(ValueError):
        bench.main(options(*words), SMALL)
