"""A few seconds of the load run on the embedded model, and that its judge finds what must not happen."""

import pytest

from macs.view import job
from tests import load


@pytest.fixture(scope="module")
def right(demo_page):
    return load.expected(demo_page)


def test_users_at_once_get_their_own_answers_a_bounded_queue_and_reasons(demo_page, right, monkeypatch):
    monkeypatch.setattr(job, "MOST", 2)
    tally = load.storm(demo_page, users=6, seconds=4, right=right, seed=3)
    assert not tally.wrong and tally.counts["failed"] == 0
    assert tally.counts["compare"] and tally.counts["queue full"] and tally.most_in_line == 2
    load.quiet(demo_page, right)


def test_another_users_answer_is_noticed(demo_page, right):
    runs, plans = right
    tally = load.storm(demo_page, users=2, seconds=2, right=(runs[1:] + runs[:1], plans), seed=1)
    assert "a compare got another's answer" in tally.wrong


@pytest.mark.parametrize(
    "change, said",
    [({}, ""), ({"resident": 1150}, "Memory grew from 1000 to 1150 MiB."), ({"files": 40}, "Files or threads were left"), ({"line": 21}, "21 runs were in a line of 20.")]
    + [({"wrong": ["mixed"]}, "mixed"), ({"log": "Traceback (most"}, "The app's log holds a traceback"), ({"counts": 0}, "Nobody got an answer."), ({"last": False}, "did not collapse")],
)
def test_what_must_not_happen_is_a_fault(change, said):
    state = {"resident": 1000, "peak": 1200, "threads": 10, "files": 12}
    tally = load.Tally(most_in_line=change.get("line", 20), wrong=change.get("wrong", []))
    tally.counts.update({"compare": change.get("counts", 9), "schedule": 3})
    seen = {"moves": 100, "requests": 20, "last": change.get("last", True)}
    after = state | {name: value for name, value in change.items() if name in state}
    found = load.faults(tally, state, after, seen, change.get("log", ""))
    assert len(found) == bool(change) and said in "".join(found)
