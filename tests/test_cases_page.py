"""Cases D02 to D19: what went wrong in pages elsewhere: values and files of callers, threads, errors half-way, memory, the Space's header."""

import hashlib
import http.client
import json
import os
import re
import subprocess
import sys
import threading
import urllib.parse
from pathlib import Path

import gradio as gr
import httpx
import psutil
import pytest
import torch

from macs.config import preset
from macs.engine.base import Hooks, Request, Stopped
from macs.model import apply, load, memory
from macs.model.anatomy import dissect
from macs.trace_file import save_trace
from macs.view import handlers, shown
from macs.view.export import around
from macs.view.job import Line
from macs.view.session import Session
from macs.view.settings import values_of
from tests import raw_api, tiny
from tests.hooked import TIGHT, hooks_on, logits
from tests.made import made_trace
from tests.test_space import faults

ROOT = Path(__file__).parents[1]
MODEL = ROOT / "assets" / "demo_model"
PUBLISHED = Path(__file__).parent / "data" / "published"


def named(path: str, **more) -> dict:
    """A file as a caller names it."""
    return {"path": path, "meta": {"_type": "gradio.FileData"}, **more}


# --- D02


@pytest.fixture
def unused(demo, monkeypatch):
    """The embedded model, which must not run."""
    ran = []
    monkeypatch.setattr(demo._loaded.model, "generate", lambda *given, **named: ran.append(given))
    yield
    assert not ran


BAD = {  # parameter -> JSON text that is refused -> what is said
    "delta": {"NaN": "nan", "5": "5", "-1": "-1", '"abc"': "'abc'", "null": "None", "true": "True", "[1]": "[1]", "{}": "{}", "1e999": "inf", '""': "''"},
    "gamma": {"1e308": "1e+308", "NaN": "nan", "-1": "-1", "0.2": "0.2", '"1.0"': "'1.0'", "null": "None", "false": "False"},
    "rho": {"2.1": "2.1", "-Infinity": "-inf", '"abc"': "'abc'"},
    "ep_size": {"3": "3", "0": "0", "-4": "-4", "2.5": "2.5", '"abc"': "'abc'", "true": "True", "NaN": "nan", "[4]": "[4]", "1e308": "1e+308"},
    "max_new_tokens": {"0": "0", "513": "513", "1.5": "1.5", "NaN": "nan", '"abc"': "'abc'", "null": "None", "true": "True", "1e308": "1e+308"},
    "policy": {'"magic"': "magic", "null": "None", "true": "True", "3": "3", "[]": "[]"},
    "baseline": {'"magic"': "magic", "null": "None", "{}": "{}", "NaN": "nan"},
    "image": {'"abc"': "Only an uploaded file", "3": "Only an uploaded file", "[1]": "Only an uploaded file", "true": "Only an uploaded file"},
}
RANGES = {"delta": "use a number from 0 to 4.", "gamma": "use a number from 0.25 to 2.5.", "rho": "use a number from 0 to 2.", "max_new_tokens": "use a whole number from 1 to 512."}


@pytest.mark.parametrize("name", BAD)
def test_D02_values_outside_their_range_are_refused_in_words_and_run_nothing(name, demo_page, unused):
    for written, named in BAD[name].items():
        event, said = raw_api.compare(demo_page, **{name: written})
        assert event == "error", written
        sentence = said["error"]
        assert named in sentence and "\n" not in sentence and "Traceback" not in sentence, (written, sentence)
        assert sentence.endswith(RANGES.get(name, "")) and "object at 0x" not in sentence


def test_D02_rescheduling_takes_the_same_values(demo_page, tmp_path):
    save_trace(made_trace(preset("macs")), tmp_path / "t.npz")
    client_names = ("policy", "gamma", "delta", "rho", "ep_size")
    with (tmp_path / "t.npz").open("rb") as file:
        (uploaded,) = httpx.post(f"{demo_page}/gradio_api/upload", files={"files": ("t.npz", file)}).json()
    file = named(uploaded)

    def schedule(trace, **written):
        values = [written.get(name, value) for name, value in zip(client_names, ('"macs"', "1.0", "1.0", "0.5", "4"))]
        return raw_api.call(demo_page, "schedule", f'{{"data": [{json.dumps(trace)}, {", ".join(values)}]}}'.encode())

    assert schedule(file)[0] == "complete" and schedule(file, ep_size="4.0")[1] == schedule(file)[1] and schedule(file, ep_size="null")[0] == "complete"
    assert schedule(None) == schedule(None, gamma="NaN") and schedule(None)[1]["error"] == "Choose a trace file first."
    for name in ("delta", "gamma", "rho", "ep_size"):
        for written, said in list(BAD[name].items())[:2]:
            event, answer = schedule(file, **{name: written})
            assert event == "error" and said in answer["error"] and "\n" not in answer["error"], (name, written)


def test_D02_the_pages_own_controls_are_checked_where_sliders_end():
    """A trace file may hold what a slider cannot reach: the policy's own range counts then, and NaN is in none."""
    session = Session(shown.open_run(around(made_trace(preset("macs"))), "file"))
    values = values_of(preset("macs", gamma=6.0, delta=9.0), "token_drop", 4)
    handlers.adjust(session, values)
    assert session.status.kind == "ready" and session.shown.policy.policy.gamma == 6.0
    for name, bad in (("delta", float("nan")), ("gamma", 1e308), ("eps", None), ("rho", "abc"), ("delta", True), ("ep_size", 3)):
        handlers.adjust(session, values | {name: bad})
        assert session.status.kind == "error" and f"{name} is {bad!r}" in session.status.text and session.shown.policy.policy.gamma == 6.0
    for length in (float("nan"), float("inf"), 0, 513, 2.5, None, "abc", True):
        list(handlers.start(session, None, Line(), None, "Hi", values | {"max_new_tokens": length}))
        assert f"max_new_tokens is {length!r}; use a whole number from 1 to 512." in session.status.text and not session.running


# --- D04, D05


def test_D04_two_threads_record_their_own_pass_and_a_third_is_not_touched():
    """Pictures of 300 and 70 visual tokens, 20 rounds, on one model; memory does not grow with the rounds."""
    model = tiny.qwen()
    work = {cells: tiny.merged_batch(*grid) for cells, grid in {300: (30, 40), 70: (14, 20)}.items()}
    serial, plain = {}, logits(model, work[70])
    for cells, batch in work.items():
        with apply(model, "macs", **TIGHT):
            serial[cells] = logits(model, batch)
    failures = []

    def policed(cells, rounds, barrier):
        barrier.wait()
        for _ in range(rounds):
            with apply(model, "macs", **TIGHT) as run:
                got = logits(model, work[cells])
            if run.trace.tokens.visual_T.sum() != cells or not torch.equal(got, serial[cells]):
                failures.append(cells)

    def bystander(rounds, barrier):
        barrier.wait()
        for _ in range(2 * rounds):
            if not torch.equal(logits(model, work[70]), plain):
                failures.append("bystander")

    held = []
    for rounds in (8, 12):
        barrier = threading.Barrier(3)
        threads = [threading.Thread(target=policed, args=(cells, rounds, barrier)) for cells in work]
        threads.append(threading.Thread(target=bystander, args=(rounds, barrier)))
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        held.append(psutil.Process().memory_info().rss)
    assert not failures and hooks_on(model) == 0 and held[1] - held[0] < 30e6
    assert not any(layer.experts._is_expert_parallel for layer in dissect(model).layers)


FRESH = """
import hashlib, json, os, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (16_000_000_000,) * 2)
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
import numpy as np, psutil, torch
torch.set_num_threads(int(sys.argv[2]))
from PIL import Image
from macs.config import preset
from macs.engine.base import Request
from macs.engine.local import LocalEngine
engine = LocalEngine(sys.argv[1])
picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (96, 128, 3), np.uint8))
plain = engine.run(Request("What is this?", picture, 4), preset("vanilla"))
try:
    LocalEngine(sys.argv[3])
    refused = ""
except ValueError as error:
    refused = str(error)
process, held = psutil.Process(), []
torch.set_num_threads(1)
sizes = [(64, 64), (1600, 8), None, (320, 240), (8, 1600)]
for i in range(50):
    size = (3024, 4032) if i in (2, 30) else sizes[i % 5]
    picture = size and Image.new("RGB", size, (5 * i, 9, 99))
    engine.run(Request("What is this?", picture, 1), preset("macs", gamma=0.5 + i / 50))
    held.append(process.memory_info().rss)
print(json.dumps({
    "digest": hashlib.sha256(plain.logprob_AV.tobytes()).hexdigest(), "refused": refused, "held": held,
    "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
}))
"""


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """A process of its own, with 16 GB and two cores at most: one run without a policy, then 50 of all sizes under MACS."""
    folder = tmp_path_factory.mktemp("large") / "Qwen3-VL-30B-A3B-Instruct"
    folder.mkdir()
    (folder / "config.json").write_bytes((PUBLISHED / folder.name / "config.json").read_bytes())
    (folder / "model.safetensors").write_bytes(b"never read")
    command = [sys.executable, "-c", FRESH, str(MODEL), str(torch.get_num_threads()), str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


class Broken(Exception):
    pass


def test_D05_after_a_run_that_stopped_or_failed_half_way_the_model_is_as_in_a_fresh_process(demo, fresh):
    picture = tiny.picture(128, 96)
    request, hooks = Request("What is this?", picture, 4), hooks_on(demo._loaded.model)

    def stop_at(step):
        if step.phase == "prefill" and step.layer == 2:
            stopping.stop.set()

    def fail_at(step):
        if step.phase == "prefill" and step.layer == 2:
            raise Broken

    stopping = Hooks(stop_at)
    with pytest.raises(Stopped):
        demo.run(request, preset("macs", gamma=0.3), hooks=stopping)
    with pytest.raises(Broken):
        demo.run(request, preset("macs", gamma=0.3), hooks=Hooks(fail_at))
    assert hooks_on(demo._loaded.model) == hooks
    assert not any(layer.experts._is_expert_parallel for layer in dissect(demo._loaded.model).layers)
    plain = demo.run(request, preset("vanilla"))
    assert hashlib.sha256(plain.logprob_AV.tobytes()).hexdigest() == fresh["digest"]


# --- D06, D07


def get(address: str, path: str) -> tuple[int, bytes]:
    """Ask for a path as it is written, which no client library would leave alone."""
    parts = urllib.parse.urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=30)
    connection.putrequest("GET", path, skip_accept_encoding=True)
    connection.endheaders()
    answer = connection.getresponse()
    return answer.status, answer.read()


SECRET = b"ab12-a-line-that-no-page-serves"


@pytest.fixture(scope="module")
def secrets(tmp_path_factory):
    """Files of the host: in its temporary folder, beside the app, and the model's."""
    outside = tmp_path_factory.mktemp("host") / "secret.png"
    outside.write_bytes(SECRET)
    return outside


def test_D06_no_file_of_the_host_is_served(demo_page, secrets):
    routes = ["/etc/passwd", "/tmp/gradio/../../etc/passwd", "/tmp/gradio/%2e%2e/%2e%2e/etc/passwd", "%2e%2e/%2e%2e/%2e%2e/etc/passwd", "app.py", ".env"]
    routes += [str(ROOT / "app.py"), str(ROOT / ".env"), str(MODEL / "config.json"), str(Path.home() / ".cache" / "huggingface" / "hub"), str(secrets), "/proc/self/environ"]
    for route in routes:
        status, body = get(demo_page, f"/gradio_api/file={route}")
        assert status == 403, (route, status)
        assert SECRET not in body and b"root:" not in body and b"import" not in body
    odd = ["//etc/passwd", "file:///etc/passwd", "/etc/passwd%00.png", "..\\..\\etc\\passwd", "/tmp/gradio/%252e%252e/etc/passwd"]
    for route in [f"/gradio_api/file={path}" for path in odd] + [f"/file={path}" for path in routes[:5]]:
        status, body = get(demo_page, route)
        assert status in (400, 403, 404, 405) and b"root:" not in body, (route, status)
    for route in ("/static/../../../../../../etc/passwd", "/assets/..%2f..%2f..%2f..%2fetc/passwd", "/gradio_api/custom_component/a/client/component/../../../etc/passwd", "/svelte/../../etc/passwd", "/theme.css/../../etc/passwd"):
        status, body = get(demo_page, route)
        assert b"root:" not in body, (route, status)


def test_D07_a_path_of_the_server_is_no_upload_whether_it_exists_or_not(demo_page, secrets, unused):
    wanted = "Only an uploaded file can be used; upload it first, then pass on what the upload returned."
    files = [named(path) for path in ("/etc/passwd", "app.py", str(secrets), str(secrets.with_name("missing.png")), "/root", "../../etc/passwd", "/tmp/gradio/../../etc/passwd")]
    files += [named("/etc/passwd", url="http://127.0.0.1:1/x.png"), {"path": "/etc/passwd"}]
    for file in files:
        event, said = raw_api.compare(demo_page, image=json.dumps(file))
        assert (event, said["error"]) == ("error", wanted), file
        body = json.dumps({"data": [file, "macs", 1.0, 1.0, 0.5, 4]}).encode()
        assert raw_api.call(demo_page, "schedule", body)[1]["error"] == wanted, file


# --- D16


def test_D16_memory_stays_flat_over_runs_of_all_sizes_and_far_below_16_gb(fresh):
    held = fresh["held"]
    assert len(held) == 50 and fresh["peak"] < 4e9
    assert max(held[5:]) < 1.1 * max(held[:5])


def test_D16_a_model_that_is_too_large_is_refused_with_the_figure_before_a_weight_is_read(fresh, tmp_path, monkeypatch):
    """31.07 billion parameters of two bytes: 62.1 GB, against the 16 GB that the process is held to."""
    assert re.fullmatch(
        r"The folder 'Qwen3-VL-30B-A3B-Instruct' needs 62\.1 GB for its weights and 1 GB to run, and this machine has 16\.0 GB; "
        r"choose a smaller model, or see what fits with `python -m macs check`\.",
        fresh["refused"],
    )
    folder = tiny.save(tiny.qwen(), tmp_path)
    needed = sum(parameter.numel() * 4 for parameter in tiny.qwen().parameters())
    monkeypatch.setattr(memory, "host_memory", lambda: memory.ROOM + needed)
    assert load(folder).num_experts == 8
    monkeypatch.setattr(memory, "host_memory", lambda: memory.ROOM + needed - 1)
    with pytest.raises(ValueError, match="GB for its weights"):
        load(folder)
    assert load(folder, dtype="bfloat16").model.dtype == torch.bfloat16  # half the bytes


@pytest.mark.parametrize("files, limit", [({"memory.max": "4000000000\n"}, 4e9), ({"memory.max": "max\n"}, None), ({"memory/memory.limit_in_bytes": "3000000000"}, 3e9), ({}, None)])
def test_D16_the_limit_of_a_container_counts(files, limit, tmp_path):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert memory.host_memory(tmp_path) == min(limit or machine, machine)


# --- D19


def test_D19_the_header_names_a_whole_version_the_pinned_one_and_a_file_that_exists():
    """Read with the Hub's own parser; what else the header must hold is in tests/test_space.py."""
    readme = (ROOT / "README.md").read_text("utf-8")
    assert faults(readme) == [] and f"sdk_version: {gr.__version__}\n" in readme and "app_file: app.py\n" in readme
    for wrong in ("3.27", "6.31", "latest", '"6.31"', "9.99.9"):
        assert faults(re.sub(r"sdk_version: \S+", f"sdk_version: {wrong}", readme)) == ["sdk_version"], wrong
    assert faults(readme.replace("sdk_version: ", "sdk_versions: ")) == ["sdk_version"]
    assert faults(readme.replace("app_file: app.py", "app_file: main.py")) == ["app_file"] and faults("\n" + readme)
