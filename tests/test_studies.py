"""The studies' own arithmetic, and each command on a few questions of the embedded model."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from macs.eval.asking import FAMILIES, held_out
from macs.eval.study_entropy import auroc, object_mask
from macs.eval.rows import summary
from macs.model.controls import random_drop
from tests.tiny import merged_batch, qwen

ROOT = Path(__file__).parents[1]


def last_line(*command: str) -> dict:
    done = subprocess.run([sys.executable, "-m", "macs", *command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_auroc_counts_pairs_in_the_right_order():
    rng = np.random.default_rng(0)
    score, positive = rng.integers(0, 6, 40), rng.random(40) < 0.4
    pairs = [(a > b) + 0.5 * (a == b) for a in score[positive] for b in score[~positive]]
    assert auroc(score, positive) == pytest.approx(np.mean(pairs))
    assert auroc(np.arange(4), np.array([False, False, True, True])) == 1
    assert np.isnan(auroc(score, np.ones(40, bool)))


def test_held_out_questions_are_two_hundred_of_each_family_and_their_masks_fit():
    asked = held_out(None)
    assert [sum(a.family == f for a in asked) for f in FAMILIES] == [200] * 6
    picture = next(a for a in asked if a.image is not None)
    for grid in ((8, 9), (5, 6)):
        mask = object_mask(picture, grid)
        assert mask.shape == (grid[0] * grid[1],) and mask.any() and not mask.all()


def test_quality_summary_counts_every_question_once():
    facts = summary({"reading": [True] * 3 + [False], "text": [False] * 4})
    assert facts["overall"] == 0.375 and facts["families"] == {"reading": 0.75, "text": 0.0}
    low, high = facts["intervals"]["overall"]
    assert low < 0.375 < high


def test_random_drop_of_nothing_changes_no_bit_and_of_all_leaves_no_expert():
    model, inputs = qwen(), merged_batch(4, 6)
    seen = []
    layers = [m for name, m in model.named_modules() if name.endswith("mlp.experts")]
    with torch.no_grad():
        plain = model(**inputs).logits
        with random_drop(model, 0.0, seed=1):
            assert torch.equal(model(**inputs).logits, plain)
        with random_drop(model, 1.0, seed=1):
            handles = [m.register_forward_hook(lambda module, args, out: seen.append(float(out.abs().max()))) for m in layers]
            model(**inputs)
            [handle.remove() for handle in handles]
        assert torch.equal(model(**inputs).logits, plain)
    assert seen and max(seen) == 0


def test_random_drop_refuses_a_share_that_is_none():
    with pytest.raises(ValueError, match="share is 1.5"), random_drop(qwen(), 1.5, seed=0):
        pass


def test_quality_command():
    result = last_line("study", "quality", "--limit", "3", "--policies", "vanilla", "macs")
    assert set(result) == {"vanilla", "macs"} and set(result["vanilla"]["families"]) == set(FAMILIES)


def test_dependence_command():
    result = last_line("study", "dependence", "--limit", "2", "--shares", "0.5", "1", "--seeds", "2")
    assert result["questions"] == 12 and len(result["dropped"]["0.5"]["seeds"]) == 2 and len(result["dropped"]["1"]["seeds"]) == 1


def test_loads_command():
    result = last_line("study", "loads", "--limit", "2")
    for layer in result["layers"].values():
        assert layer["expert"] >= layer["ranks"]["8"] >= layer["ranks"]["4"] >= layer["ranks"]["2"] >= 1
        assert layer["visual"] + layer["text"] + layer["shared"] == 16


def test_entropy_command():
    result = last_line("study", "entropy", "--limit", "2")
    assert list(result["sources"]) == ["embedding", *(f"layer {i}" for i in range(5))] and result["first"] == "layer 0"
    assert all(0 <= x["auroc"] <= 1 for x in result["sources"].values())
