"""A few seconds of each fuzzer, from fixed seeds, and the inputs that longer runs found."""

import pytest

from tests.fuzz import doors, fuzz


@pytest.mark.parametrize("door, inputs", [("trace", 60), ("api", 60), ("intake", 400)])
def test_every_input_is_taken_or_refused_in_one_sentence(door, inputs):
    report = fuzz(door, inputs=inputs, start=5)
    assert report.inputs == inputs and report.taken and report.refused
    assert not report.failures, report.summary(door, 0)


def test_the_same_seed_makes_the_same_inputs_and_a_failure_is_counted(monkeypatch):
    seen = [[], []]
    for i in (0, 1):
        monkeypatch.setattr("tests.fuzz.look_at_picture", seen[i].append)
        fuzz("intake", inputs=30, start=7)
    assert seen[0] == seen[1] and len(seen[0]) == 30
    monkeypatch.setattr("tests.fuzz.look_at_picture", lambda data: data.nothing)
    report = fuzz("intake", inputs=5)
    assert sum(report.failures.values()) == 5 and "AttributeError" in report.summary("intake", 1)
    assert set(doors()) == {"trace", "api", "intake"}
