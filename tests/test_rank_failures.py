"""Starting ranks and losing them: one sentence, no process left behind, and the next run starts afresh."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from macs.config import preset
from macs.engine.base import EngineFailure, Hooks, Request
from macs.engine.local import LocalEngine
from macs.engine.start import start
from macs.trace_file import load_trace
from tests import rank_jobs, tiny
from tests.processes import children, gone, signalable
from tests.rank_fixtures import folder, local, one_thread_a_rank  # noqa: F401

ROOT = Path(__file__).parents[1]
REQUEST = Request("what is it?", tiny.picture(), 16)


def test_a_number_of_ranks_that_does_not_divide_the_experts_is_refused_before_any_starts(folder):
    for ranks in (3, 16):
        with pytest.raises(ValueError, match=f"ranks is {ranks}.*use one of 1, 2, 4, 8"):
            start(folder, ranks, device="cpu")
    for ranks in (0, "two", -1, "1.5"):
        with pytest.raises(ValueError, match="use auto, 1, or a number"):
            start(folder, ranks, device="cpu")
    with pytest.raises(ValueError, match="leave it out or use 2"):
        start(folder, 2, device="cpu", ep_size=4)


def test_auto_is_one_process_without_two_gpus(folder):
    engine = start(folder, "auto", device="cpu")
    assert isinstance(engine, LocalEngine) and not engine.info.measured


def test_a_rank_that_is_killed_raises_or_hangs_becomes_one_sentence_and_the_next_run_starts_afresh(folder, local):
    timeout = 4.0
    engine = start(folder, 2, device="cpu", rank_timeout=timeout)
    expected = local.run(REQUEST, preset("macs"), ep_size=2).answer_A

    def fails(what, hooks=Hooks()):
        pids, began = engine.group.pids, time.monotonic()
        with pytest.raises(EngineFailure) as failure:
            engine.run(REQUEST, preset("macs"), hooks=hooks)
        assert time.monotonic() - began < timeout + 8
        said = str(failure.value)
        assert said.startswith(f"Rank 1 of 2 {what}") and "run again" in said and "\n" not in said
        assert gone(pids) and engine.group is None
        assert engine.run(REQUEST, preset("macs")).answer_A == expected
        assert engine.group.pids != pids

    def at_decode(number):
        return Hooks(progress=lambda step: os.kill(engine.group.pids[1], number) if step.phase == "decode" and engine.group else None)

    try:
        fails("was killed by signal 9", at_decode(signal.SIGKILL))
        engine.group.call(rank_jobs.break_last_layer, 1)
        fails("failed: RuntimeError: made to fail")
        fails(f"has not moved for {timeout:g} seconds", at_decode(signal.SIGSTOP))
    finally:
        pids = engine.group.pids if engine.group else []
        engine.close()
    assert gone(pids)
    with pytest.raises(EngineFailure, match="closed"):
        engine.run(REQUEST, preset("macs"))


def test_ranks_end_with_a_caller_that_is_killed():
    script = "from macs.engine.launch import RankGroup\ngroup = RankGroup(2)\nprint(*group.pids, flush=True)\nimport time; time.sleep(600)"
    caller = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    pids = list(map(int, caller.stdout.readline().split()))
    assert len(pids) == 2 and all(map(signalable, pids))
    caller.kill()
    caller.wait()
    assert gone(pids)


def test_ctrl_c_leaves_no_process(folder):
    command = [sys.executable, "-m", "macs", "run", "--model", folder, "--prompt", "hello", "--ranks", "2", "--device", "cpu"]
    caller = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while caller.poll() is None and len(children(caller.pid)) < 2:
        time.sleep(0.05)
    pids = children(caller.pid)
    caller.send_signal(signal.SIGINT)
    _, error = caller.communicate(timeout=60)
    assert caller.returncode == 130 and error.strip().endswith("Stopped.") and len(pids) == 2
    assert gone(pids)


def test_torchrun_gives_the_same_trace(folder, local, tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "macs", "run"]
    flags = ["--model", folder, "--prompt", "hello", "--policy", "macs", "--gamma", "0.6", "--device", "cpu", "--out", str(tmp_path / "t.npz"), "--json"]
    done = subprocess.run([*torchrun, *flags], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    expected = local.run(Request("hello"), preset("macs", gamma=0.6), ep_size=2).trace
    trace = load_trace(tmp_path / "t.npz")
    assert document["answer"] == trace.answer == expected.answer and document["times"] == "measured on 2 ranks"
    for layer, same in zip(trace.layers, expected.layers, strict=True):
        assert np.array_equal(layer.decision.status_TC, same.decision.status_TC)
        assert np.array_equal(layer.decision.expert_TC, same.decision.expert_TC)
        assert layer.seconds["experts"].shape == (2,)


HANGING = """
import sys, time
from macs.engine.joined import JoinedGroup
from tests.rank_jobs import hang, total
group = JoinedGroup(timeout=3)
if group.index:
    group.serve()
print(group.call(total, 1.0), flush=True)
group.call(hang, 1)
"""


def test_a_hung_rank_ends_a_torchrun_launch(tmp_path):
    (tmp_path / "hanging.py").write_text(HANGING)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(tmp_path / "hanging.py")]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0 and "[3.0, 3.0]" in done.stdout
    assert "of 2 has not moved for 3 seconds" in done.stderr
