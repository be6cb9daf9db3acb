"""The made-up trace is labelled so, is whole, and has the size that was asked for."""

import numpy as np
import pytest

from macs.__main__ import main
from macs.engine.synthetic import synthetic
from macs.trace_file import load_trace
from macs.view import export, session, shown
from macs.view.words import Words
from tests.markup import read


def test_the_command_writes_a_trace_that_says_it_is_synthetic(tmp_path, capsys):
    file = tmp_path / "made.npz"
    sizes = ["--layers", "3", "--experts", "32", "--top-k", "4", "--tokens", "200", "--ep-size", "8"]
    assert main(["synthetic", "--out", str(file), *sizes]) == 0
    trace = load_trace(file)
    assert (len(trace.layers), trace.num_experts, trace.top_k, trace.ep_size) == (3, 32, 4, 8)
    assert trace.about["source"] == "synthetic" and "synthetic" in trace.about["model"] and "synthetic" in capsys.readouterr().out
    assert all(layer.kept + layer.rerouted + layer.dropped == layer.pairs for layer in trace.layers)


def test_the_same_seed_gives_the_same_trace():
    a, b = (synthetic(2, 16, 2, 120, 4, seed=3) for _ in range(2))
    assert all(np.array_equal(x.scores_TN, y.scores_TN) for x, y in zip(a.layers, b.layers))


def test_sizes_that_do_not_fit_are_refused(tmp_path, capsys):
    assert main(["synthetic", "--out", str(tmp_path / "x.npz"), "--experts", "12", "--ep-size", "5"]) == 2
    assert main(["synthetic", "--out", str(tmp_path / "x.npz"), "--tokens", "10"]) == 2
    assert "divide" in capsys.readouterr().err


@pytest.mark.parametrize(("experts", "top_k"), [(128, 8), (40, 4)])
def test_the_page_shows_a_model_of_many_experts(experts, top_k):
    trace = synthetic(4, experts, top_k, 300, 8, seed=1)
    content = shown.open_run(export.around(trace), "file")
    for markup in session.render(content, Words("en")).values():
        read(markup)
