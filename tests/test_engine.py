"""The engine and the run command on the embedded model: same decisions everywhere, clean stops, one sentence on bad input."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from macs.config import preset
from macs.core import DROPPED
from macs.engine.base import Hooks, Request, Stopped
from macs.engine.compare import NAMES, compare, load_comparison, save_comparison
from macs.engine.generation import mean_kl
from macs.engine.intake import open_image
from macs.engine.local import LocalEngine
from macs.engine.run_command import DEMO_MODEL
from macs.trace_file import load_trace

ROOT = Path(__file__).parents[1]
PROMPT = "How many circles are there?"


@pytest.fixture(scope="module")
def engine():
    engine = LocalEngine(str(DEMO_MODEL))
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def picture_file(tmp_path_factory):
    pixels = np.random.default_rng(3).integers(0, 256, (12, 16, 3), np.uint8)
    path = tmp_path_factory.mktemp("picture") / "noise.png"
    Image.fromarray(pixels).resize((320, 240), Image.Resampling.BICUBIC).save(path)
    return path


@pytest.fixture(scope="module")
def request_(picture_file):
    return Request(PROMPT, open_image(picture_file).image, 8)


@pytest.fixture(scope="module")
def comparison(engine, request_):
    return compare(engine, request_, preset("macs", gamma=0.7))


def decisions(trace):
    return [(x.decision.expert_TC, x.decision.status_TC, x.decision.weight_TC) for x in trace.layers]


def equal(a, b):
    return all(np.array_equal(x, y) for one, other in zip(decisions(a), decisions(b), strict=True) for x, y in zip(one, other, strict=True))


def test_four_runs_answer_and_add_up(comparison):
    for name in NAMES:
        trace = getattr(comparison, name)
        assert trace.seconds["total"] > 0 and trace.about["source"] == "live"
        for layer in trace.layers:
            assert layer.kept + layer.rerouted + layer.dropped == layer.pairs == trace.tokens.valid_T.sum() * trace.top_k
    assert comparison.vanilla.share(DROPPED) == 0 and comparison.vanilla.kl is None
    assert comparison.policy.kl >= 0 and not comparison.planned


def test_the_baseline_at_equal_time_is_as_slow_as_the_policy(comparison):
    assert comparison.same_time_reached
    planned = comparison.plan(comparison.policy.policy)
    step = comparison.same_time.reschedule(planned.same_time.policy.with_(gamma=planned.same_time.policy.gamma - 0.01))
    assert step.straggler() < comparison.policy.straggler() <= planned.same_time.straggler() + 1e-9


def test_planning_with_unchanged_settings_keeps_every_decision_of_the_run(comparison):
    planned = comparison.plan(comparison.policy.policy)
    assert planned.planned
    for name in ("vanilla", "same_gamma", "policy"):
        assert equal(getattr(planned, name), getattr(comparison, name))


def test_planning_keeps_the_answers_of_the_run(comparison):
    planned = comparison.plan(preset("macs", gamma=0.3, delta=3.0), baseline="expanded_drop", ep_size=8)
    assert planned.policy.answer == comparison.policy.answer and planned.policy.ep_size == 8
    assert planned.same_gamma.policy.preset == "expanded_drop" and planned.same_gamma.policy.gamma == 0.3


def test_a_saved_comparison_comes_back(comparison, tmp_path):
    save_comparison(comparison, tmp_path / "example")
    again = load_comparison(tmp_path / "example")
    assert all(equal(getattr(again, name), getattr(comparison, name)) for name in NAMES)
    assert again.policy.images == comparison.policy.images and again.policy.kl == comparison.policy.kl


def test_the_command_line_decides_as_the_engine_does(engine, request_, picture_file, tmp_path):
    out = tmp_path / "trace.npz"
    command = [sys.executable, "-m", "macs", "run", "--image", str(picture_file), "--prompt", PROMPT, "--gamma", "0.7", "--max-new-tokens", "8", "--ranks", "1"]
    done = subprocess.run([*command, "--json", "--out", str(out)], cwd=ROOT, capture_output=True, text=True, check=True)
    document = json.loads(done.stdout)
    trace = engine.run(request_, preset("macs", gamma=0.7)).trace
    assert equal(load_trace(out), trace) and document["answer"] == trace.answer
    for entry, layer in zip(document["layers"], trace.layers, strict=True):
        assert (entry["kept"], entry["rerouted"], entry["dropped"]) == (layer.kept, layer.rerouted, layer.dropped)
        assert entry["straggler"] == pytest.approx(layer.straggler(trace.ep_size))
        for name in ("tokens_before", "tokens_after", "effective_before", "effective_after", "capacity"):
            assert entry[name] == pytest.approx(getattr(layer.decision, f"{name}_N").tolist())


def test_a_run_without_a_picture_weighs_every_token_1(engine):
    trace = engine.run(Request("What is 2 plus 3?", None, 4), preset("macs", gamma=0.8)).trace
    assert not trace.tokens.visual_T.any() and trace.images == ()
    for layer in trace.layers:
        assert (layer.decision.token_weight_T == 1).all() and layer.decision.visual_ratio == 0


def test_a_stopped_run_leaves_nothing_behind(engine, request_):
    before = engine.run(request_, preset("vanilla")).trace
    hooks = Hooks()
    hooks = dataclasses.replace(hooks, progress=lambda step: hooks.stop.set() if step.phase == "prefill" and step.layer == 2 else None)
    with pytest.raises(Stopped):
        engine.run(request_, preset("macs", gamma=0.5), hooks=hooks)
    after = engine.run(request_, preset("vanilla")).trace
    assert equal(before, after) and before.answer == after.answer


def test_progress_names_every_layer_of_the_prefill(engine, request_):
    steps = []
    engine.run(request_, preset("macs"), hooks=Hooks(progress=steps.append))
    assert [s.layer for s in steps if s.phase == "prefill"] == list(range(engine.info.num_layers))
    assert steps[0].phase == "encode" and steps[-1].phase == "decode"


@pytest.mark.parametrize("prompt", ["", "   ", "\n"])
def test_an_empty_prompt_is_refused_in_one_sentence(engine, prompt):
    with pytest.raises(ValueError, match="Write a prompt first."):
        engine.run(Request(prompt), preset("macs"))


def test_kl_is_zero_for_the_same_distribution_and_right_for_another():
    p, q = np.log([[0.5, 0.25, 0.25]]), np.log([[0.25, 0.5, 0.25]])
    assert mean_kl(p, p) == 0
    assert mean_kl(p, q) == pytest.approx(0.5 * np.log(2) - 0.25 * np.log(2))
    hard = np.array([[0.0, -np.inf]])
    assert mean_kl(hard, np.log([[0.5, 0.5]])) == pytest.approx(np.log(2))


BAD = {
    "gamma is nan": ["--gamma", "nan"],
    "gamma is -1": ["--gamma", "-1"],
    "delta is": ["--delta", "1e9"],
    "policy is 'nonsense'": ["--policy", "nonsense"],
    "ep_size is 3": ["--ep-size", "3", "--ranks", "1"],
    "no such image": ["--image", "nowhere.png"],
    "cannot be read as an image": ["--image", "README.md"],
    "no model": ["--model", "tests"],
    "Write a prompt first": ["--prompt", " "],
    "max-new-tokens is 0": ["--max-new-tokens", "0"],
}


@pytest.mark.parametrize("sentence", BAD)
def test_bad_input_ends_with_one_sentence_and_code_2(sentence):
    done = subprocess.run([sys.executable, "-m", "macs", "run", "--prompt", "Hi", *BAD[sentence]], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and sentence in done.stderr and done.stderr.strip().count("\n") == 0, done.stderr


def test_an_unknown_command_lists_the_known_ones():
    done = subprocess.run([sys.executable, "-m", "macs", "fly"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and "calibrate" in done.stderr


def test_the_embedded_model_says_that_it_knows_drawings_alone(engine, comparison):
    assert any("drawings" in notice for notice in engine.info.notices)
    assert comparison.policy.about["notices"] == list(engine.info.notices)
