"""The README's Python for a user's own model, run as it is printed."""

import re
from pathlib import Path

import pytest

from macs.trace_file import load_trace
from tests import tiny
from tests.checkpoints import CHECKPOINTS

SECTION = (Path(__file__).parents[1] / "README.md").read_text().split("## On your own model")[1]


@pytest.mark.parametrize("name", ["qwen3-vl", "internvl"])
def test_the_wrap_works_outside_the_app_on_a_model_that_transformers_loads(name, tmp_path, monkeypatch, capsys):
    CHECKPOINTS[name].write(tmp_path / "model")
    tiny.picture(100, 60).save(tmp_path / "photo.jpg")
    monkeypatch.chdir(tmp_path)
    snippet = re.search(r"```python\n(import macs\n.*?)```", SECTION, re.DOTALL)[1]
    space = {"MODEL": str(tmp_path / "model")}
    exec(compile(snippet, "README.md", "exec"), space)
    trace, model = space["run"].trace, space["model"]
    ids = space["batch"]["input_ids"]
    assert trace.policy.preset == "macs" and trace.policy.gamma == 1.0 and trace.ep_size == 8
    assert len(trace.tokens) == ids.numel() and trace.tokens.visual_T.sum() == (ids == tiny.IMAGE).sum() > 0
    assert trace.grids == (((4, 6),) if name == "qwen3-vl" else ((8, 12), (4, 4)))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [[int(n) for n in line[:4]] for line in lines] == [[x.layer, x.kept, x.rerouted, x.dropped] for x in trace.layers]
    assert all(x.kept + x.rerouted + x.dropped == ids.numel() * tiny.TOP_K for x in trace.layers)
    assert load_trace(tmp_path / "run.npz").grids == trace.grids and space["cheaper"].policy.preset == "token_drop"
    assert space["output"].shape[1] > ids.shape[1]
    left = [hook for m in model.modules() for hook in (*m._forward_hooks.values(), *m._forward_pre_hooks.values())]
    assert not [hook for hook in left if hook.__module__.startswith("macs")]  # transformers keeps some of its own
