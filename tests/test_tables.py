"""Cells, rows and tables: measured once and read back, resumed, compared pair by pair; and the search for equal time."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from macs.config import Policy, preset
from macs.engine.base import DEMO_MODEL, EXAMPLES, Request
from macs.engine.local import LocalEngine
from macs.engine.tune import snippet, tune
from macs.eval.cells import Bench, Loads, Outcome, Store, batched, encoded
from macs.eval.equal_time import gamma_for
from macs.eval.rows import changed, merged, row, text, write_csv
from macs.eval.statistics import compared
from macs.eval.study_quality import labelled, policy_fields
from macs.eval.tables import TABLES
from macs.eval.tasks import read_tasks
from macs.model import apply, load, read_calibration
from macs.view import handlers, shown
from macs.view.examples import find_examples
from macs.view.job import Line
from macs.view.session import Session
from macs.view.settings import values_of
from tests.fake_engine import FakeEngine
from tests.test_studies import last_line


@pytest.fixture(scope="module")
def bench():
    loaded = load(DEMO_MODEL)
    return Bench(loaded, read_calibration(loaded), batched(read_tasks(["embedded"], 3), 3), Store(None), "weights")


def test_a_cell_is_what_the_model_answers_and_executes_under_the_policy(bench):
    policy = preset("macs", gamma=0.6)
    cell = bench.cell(policy, 4)
    scores, rank, expert, pairs, dropped = [], 0, 0, 0, 0
    for batch in bench.batches:
        inputs = encoded(bench.loaded, batch)
        with torch.no_grad(), apply(bench.loaded.model, policy, ep_size=4, modality=bench.modality, inputs=inputs) as run:
            output = bench.loaded.model.generate(**inputs, max_new_tokens=24, do_sample=False)
        answers = bench.loaded.processor.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        scores += [float(a.strip() == q.answers[0]) for a, q in zip(answers, batch)]
        for layer in run.trace.layers:
            executed_N = np.bincount(layer.decision.expert_TC[layer.decision.expert_TC < 16], minlength=16)
            rank, expert = rank + executed_N.reshape(4, 4).sum(1).max(), expert + executed_N.max()
            pairs, dropped = pairs + 2 * int(run.trace.tokens.valid_T.sum()), dropped + layer.dropped
    assert cell.scores == tuple(scores) and 0 < sum(scores)
    assert cell.straggler == pytest.approx(rank / (pairs / 4)) and cell.expert_straggler == pytest.approx(expert / (pairs / 16))
    assert cell.dropped == pytest.approx(dropped / pairs) and cell.dropped > 0


def test_remembered_pictures_change_no_answer_and_no_load(bench):
    cold = replace(bench, store=Store(None), _kept={}, _room=0)
    policy = preset("token_drop", gamma=0.7)
    first, second = (replace(bench, store=Store(None)).cell(policy, 4) for _ in range(2))
    assert replace(first, seconds=0) == replace(second, seconds=0) == replace(cold.cell(policy, 4), seconds=0)
    assert "forward" not in vars(bench.loaded.anatomy.vision_tower)


def test_a_store_goes_on_where_it_stopped_and_tells_cells_apart(tmp_path, bench):
    path = tmp_path / "cells.jsonl"
    first = replace(bench, store=Store(path))
    measured = first.cell(preset("vanilla"), 4)
    again = replace(bench, store=Store(path))
    again._measure = lambda *_: pytest.fail("a stored cell was measured again")
    assert again.cell(preset("vanilla"), 4) == measured and list(again.store.used.values()) == [measured.seconds]
    for other in (lambda b: b.cell(preset("vanilla"), 2), lambda b: b.cell(preset("vanilla", delta=2.0), 4)):
        with pytest.raises(pytest.fail.Exception):
            other(again)
    half = Outcome((0.5, 1.0), Loads(1, 2, 3, 4, 5), 4, 16)
    first.store.put("half", half)
    assert Store(path).get("half") == half


def test_paired_intervals_are_narrower_than_unpaired_and_hold_the_difference():
    rng = np.random.default_rng(1)
    reference = (rng.random(600) < 0.8).astype(float)
    scores = np.where(rng.random(600) < 0.05, 1 - reference, reference)
    found = compared(scores, reference)
    low, high = found["difference_interval"]
    spread = np.sqrt(((scores - reference) ** 2).mean() / 600)  # of a mean of paired differences
    assert found["difference"] == pytest.approx(scores.mean() - reference.mean()) and low < found["difference"] < high
    assert high - low == pytest.approx(2 * 1.96 * spread, rel=0.15) and high - low < 2 * 1.96 * np.sqrt(2 * 0.16 / 600)
    assert found["relative"] == pytest.approx(scores.mean() / reference.mean())
    assert compared(reference, reference)["relative_interval"] == [1.0, 1.0]
    assert np.isnan(compared([0.0, 1.0], [0.0, 0.0])["relative"])
    with pytest.raises(ValueError, match="2 answers cannot be compared with 1"):
        compared([1, 0], [1])


def test_rows_count_every_question_once_and_csv_has_every_figure(tmp_path):
    outcome = Outcome((1.0, 0.0, 1.0, 1.0), Loads(30, 20, 40, 10, 5), 2, 4)
    vanilla = Outcome((1.0, 1.0, 1.0, 1.0), Loads(30, 20, 40, 0, 0), 2, 4)
    found = row("x", preset("macs", delta=2.0), outcome, vanilla, ["a", "a", "b", "b"], against={"other": vanilla}, target=1.1)
    assert found["overall"] == 0.75 and found["families"] == {"a": 0.5, "b": 1.0} and found["relative"] == 0.75 and found["settings"] == {"delta": 2.0}
    assert found["straggler"] == 1.5 and found["expert_straggler"] == 2.0 and found["dropped"] == 0.25 and found["rerouted"] == 0.125
    assert found["against"]["other"]["difference"] == -0.25 and "75.0%" in text([found])
    write_csv([found], tmp_path / "x.csv")
    (line,) = csv.DictReader((tmp_path / "x.csv").open())
    assert line["families.a"] == "0.5" and line["target"] == "1.1" and line["intervals.overall.low"] and line["against.other.difference"] == "-0.25"


def test_seeds_are_averaged_question_by_question():
    a, b = (Outcome(scores, Loads(n, n, n, n, n), 4, 16) for scores, n in (((1.0, 0.0), 1), ((1.0, 1.0), 3)))
    assert merged([a, b]).scores == (1.0, 0.5) and merged([a, b]).loads == Loads(4, 4, 4, 4, 4)


def test_changed_settings_are_those_that_a_preset_does_not_say():
    assert changed(preset("macs", gamma=0.5)) == {} and changed(preset("macs", rho=1.0)) == {"rho": 1.0}
    assert changed(preset("macs_static")) == {} and changed(preset("macs", capacity="static", overflow="drop")) == {"capacity": "static", "overflow": "drop"}


@pytest.mark.parametrize("name", ["token_drop", "macs", "random_drop"])
def test_equal_time_is_found_by_runs(bench, name):
    gamma = gamma_for(bench, preset(name), 4, 1.1)
    assert bench.cell(preset(name, gamma=gamma), 4).straggler == pytest.approx(1.1, rel=0.02)


def test_equal_time_with_a_faster_vanilla_is_refused(bench):
    with pytest.raises(ValueError, match="No capacity factor makes macs as slow as 9"):
        gamma_for(bench, preset("macs"), 4, 9.0)


def test_a_table_compares_every_policy_with_the_controls_at_the_same_load(bench):
    tiny = replace(bench, batches=bench.batches[:2], store=Store(None), _kept={})
    rows = TABLES["main"](tiny, 4, None)
    assert [r["label"] for r in rows][:2] == ["vanilla", "token drop"] and len(rows) == 8 and rows[0]["relative"] == 1
    assert {r["questions"] for r in rows} == {6}
    ablations = TABLES["ablations"](tiny, 4, None)
    assert {"without entropy", "without rerouting", "entropy alone", "margin 0.4", "δ = 4"} <= {r["label"] for r in ablations}
    assert all("MACS" in r["against"] for r in ablations)


def test_quality_command_with_gammas_fields_and_files(tmp_path):
    out = str(tmp_path / "q.json"), str(tmp_path / "q.csv")
    given = ("--limit", "1", "--policies", "vanilla", "macs", "--gammas", "0.5", "1", "--set", "delta=2", "entropy_source=embedding")
    result = last_line("study", "quality", *given, "--json", out[0], "--csv", out[1])
    assert list(result) == ["vanilla", "macs γ 0.5", "macs γ 1"] and result["macs γ 1"]["settings"] == {"delta": 2.0, "entropy_source": "embedding"}
    written = json.loads((tmp_path / "q.json").read_text())
    assert written["rows"] == list(result.values()) and {"command", "date", "machine", "model_sha256", "questions_sha256"} <= set(written)
    assert len((tmp_path / "q.csv").read_text().splitlines()) == 4


def test_bad_flags_are_refused_by_name():
    with pytest.raises(ValueError, match="set is 'speed=2'"):
        policy_fields(["speed=2"])
    with pytest.raises(ValueError, match="delta is 'x'; use a number"):
        policy_fields(["delta=x"])
    assert list(labelled(["vanilla", "macs"], [0.5], {})) == ["vanilla", "macs"]


def test_tune_finds_the_least_change_at_the_target():
    engine, heard = LocalEngine(str(DEMO_MODEL)), []
    requests = [Request(q.prompt, q.picture()) for q in read_tasks(["embedded:1"], 1)[:2]]
    tried = tune(engine, requests, 1.2, starts=("token_drop", "macs"), found=heard.append)
    assert sorted(tried, key=lambda c: c.kl) == tried and len(heard) == len(tried) >= 5
    assert all(c.straggler <= 1.2 * 1.01 for c in tried)
    best = tried[0]
    again = [engine.run(r, best.policy, reference=engine.run(r, preset("vanilla"))) for r in requests]
    assert np.mean([run.trace.kl for run in again]) == pytest.approx(best.kl) and np.mean([run.trace.straggler() for run in again]) == pytest.approx(best.straggler)


def test_tune_needs_requests_and_a_target_that_vanilla_misses():
    engine, one = FakeEngine(), [Request("How many?")]
    with pytest.raises(ValueError, match="no request"):
        tune(engine, [], 1.2)
    for target in (0, float("nan"), True and "x", -1):
        with pytest.raises(ValueError, match="target-straggler is"):
            tune(engine, one, target)
    with pytest.raises(ValueError, match="which meets 50: no policy is needed"):
        tune(engine, one, 50)


def test_the_snippet_runs_the_policy(bench):
    for policy in (preset("macs", gamma=0.5, delta=2.0), preset("token_drop"), Policy(load="tokens", capacity="static", priority="weight", overflow="drop")):
        line = snippet(policy, 4)
        call = line.removeprefix("with macs.").removesuffix(" as run:").replace("processor=processor, inputs=batch", "inputs={}")
        with eval(call, {"apply": apply, "model": bench.loaded.model}) as run:  # noqa: S307 - our own line
            assert run.policy == policy




def test_the_page_chooses_the_policy_of_least_change_in_the_same_time():
    engine = LocalEngine(str(DEMO_MODEL))
    examples = find_examples(EXAMPLES)
    picture, prompt = examples[0].picture, examples[0].prompt
    session = Session(shown.open_run(examples[0].load(), "recorded", example=examples[0].name))
    values = values_of(preset("macs", gamma=0.8), "token_drop", 4)
    list(handlers.start(session, engine, Line(), picture, prompt, values))
    before = session.shown.policy
    list(handlers.start(session, engine, Line(), picture, prompt, values, choose=True))
    after = session.shown.policy
    assert session.status.kind == "ready" and session.wanted[0] == after.policy and 0.25 <= after.policy.gamma <= 2.5
    assert after.straggler() <= before.straggler() * 1.01 and after.kl <= before.kl
    handlers.adjust(session, values_of(preset("vanilla"), "token_drop", 4))
    assert "which meets" in list(handlers.start(session, engine, Line(), picture, prompt, values, choose=True))[-1]["status"]
