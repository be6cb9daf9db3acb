"""The repository as a Hugging Face Space: front matter, sizes, a cold start without network, and the hardware it finds."""

import os
import pickle
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import tomllib
import types
from dataclasses import replace
from pathlib import Path

import httpx
import psutil
import pytest
from gradio_client import Client, handle_file
from huggingface_hub import SpaceCard, SpaceHardware
from PIL import Image

from macs.config import preset
from macs.engine import start as starting
from macs.engine.base import EngineFailure, Hooks, Request, Stopped
from macs.engine.zero import ZeroEngine
from macs.view.words import Words
from tests.fake_engine import LAYERS, FakeEngine

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
REQUEST = Request("What is this?", Image.new("RGB", (60, 40), "red"), 4)


def tracked() -> list[Path]:
    """Every file that is or would be part of the repository."""
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def faults(readme: str) -> list[str]:
    """What the Space's builder would stumble over, read with the Hub's own parser."""
    if not readme.startswith("---\n"):
        return ["the first line opens no front matter"]
    data = SpaceCard(readme, ignore_metadata_errors=True).data.to_dict()
    pinned = re.search(r"^gradio==(.*)$", (ROOT / "requirements.txt").read_text(), re.MULTILINE)[1]
    python = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    rules = {
        "title": 0 < len(data.get("title") or ""),
        "sdk": data.get("sdk") == "gradio",
        "sdk_version": re.fullmatch(r"\d+\.\d+\.\d+", str(data.get("sdk_version"))) and data["sdk_version"] == pinned,
        "python_version": data.get("python_version") == "3.12" and python == ">=3.11",
        "app_file": (ROOT / str(data.get("app_file"))).is_file(),
        "suggested_hardware": data.get("suggested_hardware") in {hardware.value for hardware in SpaceHardware},
        "license": data.get("license") == "apache-2.0" and "Apache License" in (ROOT / "LICENSE").read_text()[:200],
        "short_description": 0 < len(data.get("short_description") or "") < 60,
        "models": bool(data.get("models")) and all(re.fullmatch(r"[\w.-]+/[\w.-]+", name) for name in data["models"]),
        "tags": bool(data.get("tags")),
        "emoji": bool(data.get("emoji")) and {data.get("colorFrom"), data.get("colorTo")} <= {"red", "yellow", "green", "blue", "indigo", "purple", "pink", "gray"},
    }
    return [name for name, good in rules.items() if not good]


def test_the_front_matter_is_what_a_gradio_space_needs():
    assert faults(README) == []


@pytest.mark.parametrize(
    "name, line",
    [("sdk_version", "sdk_version: 6.31"), ("sdk_version", "sdk_version: 6.30.0"), ("app_file", "app_file: main.py"), ("python_version", "python_version: 3.12")]
    + [("short_description", "short_description: " + "long " * 13), ("suggested_hardware", "suggested_hardware: cpu"), ("license", "license: mit")],
)
def test_a_wrong_line_of_the_front_matter_is_found(name, line):
    changed = re.sub(rf"^{name}: .*$", line, README, count=1, flags=re.MULTILINE)
    assert changed != README and faults(changed) == [name]
    assert faults("\n" + README) == ["the first line opens no front matter"]


def test_no_tracked_file_needs_large_file_storage():
    assert [path for path in tracked() if path.stat().st_size > 10_000_000] == []


def test_the_upload_commands_are_ones_that_the_hubs_tool_knows_and_hold_no_token():
    lines = [line for line in README.splitlines() if line.startswith("hf ")]
    assert [line.split()[1] for line in lines] == ["repos", "upload"]
    for line in lines:
        words = line.split()
        command = words[: 3 if words[1] == "repos" else 2]
        said = subprocess.run([Path(sys.executable).parent / command[0], *command[1:], "--help"], capture_output=True, text=True, check=True, env=os.environ | {"COLUMNS": "200"}).stdout
        assert all(re.search(rf"{re.escape(flag)}\b", said) for flag in words if flag.startswith("--"))
    assert "--token" not in README and not re.search(r"\bhf_\w{8,}", README)


# ---- a cold start


GUARD = """
import sys

def guard(event, args):
    if event in ("socket.connect", "socket.sendto", "socket.getaddrinfo"):
        address = args[1] if event != "socket.getaddrinfo" else args
        host = address[0] if isinstance(address, tuple) else address
        if isinstance(address, tuple) and host not in ("127.0.0.1", "localhost", "::1", "0.0.0.0", "::", "", None):
            open({log!r}, "a").write(f"{{event}} {{host}}\\n")
            raise OSError("There is no network.")

sys.addaudithook(guard)
"""


def test_a_fresh_copy_without_network_serves_the_page_and_answers(tmp_path):
    """As on a Space with CPU basic: the page within 15 seconds, an answer, and no more than 4 GB."""
    for path in tracked():
        copy = tmp_path / "clone" / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    log = tmp_path / "attempts"
    (tmp_path / "guard").mkdir()
    (tmp_path / "guard" / "sitecustomize.py").write_text(GUARD.format(log=str(log)))
    space = {"SPACE_ID": "somebody/macs-workbench", "GRADIO_SERVER_NAME": "0.0.0.0", "HF_HOME": str(tmp_path / "hub"), "HOME": str(tmp_path)}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "GRADIO_", "TRANSFORMERS_"))}
    began = time.monotonic()
    command = [sys.executable, "app.py", "--port", str(port := free_port())]
    with (tmp_path / "output").open("w") as output:
        app = subprocess.Popen(command, cwd=tmp_path / "clone", env=inherited | space | {"PYTHONPATH": str(tmp_path / "guard")}, stdout=output, stderr=output)
    try:
        first_page(app, f"http://127.0.0.1:{port}/")
        took, busy = time.monotonic() - began, sum(psutil.Process(app.pid).cpu_times()[:2])
        layout = httpx.get(f"http://127.0.0.1:{port}/config").text
        client = Client(f"http://127.0.0.1:{port}/", verbose=False)
        picture = tmp_path / "clone" / "assets" / "examples" / "counting.png"
        runs = client.predict(prompt="How many circles are there?", image=handle_file(picture), api_name="/compare")
        peak = int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{app.pid}/status").read_text())[1]) / 2**20
    finally:
        app.terminate()
        app.wait(20)
    said = (tmp_path / "output").read_text()
    print(f"first page after {took:.1f} s ({busy:.1f} s computing), peak {peak:.2f} GiB")
    assert not log.exists(), log.read_text()
    assert "Runs on the CPU in one process" in layout and "Traceback" not in said, said
    assert all(runs[name]["answer"] for name in runs) and len(runs["vanilla"]["layers"]) == 5
    assert min(took, busy) <= 15, f"{took:.1f} s, of which {busy:.1f} s computing"
    assert peak <= 4, f"{peak:.2f} GiB"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def first_page(app: subprocess.Popen, address: str) -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until and app.poll() is None:
        try:
            httpx.get(address, timeout=30).raise_for_status()
            return
        except httpx.TransportError:
            time.sleep(0.1)
    raise AssertionError("the page never came")


# ---- the hardware that is there


def spaces_like(broken: Exception | None = None):
    """The decorator of the package ``spaces``, with its rules: arguments and steps are pickled, the steps end at the next one when nobody listens."""
    calls = []

    def gpu(duration):
        def decorate(task):
            def call(*args):
                calls.append(args)
                if broken:
                    raise broken
                for step in task(*pickle.loads(pickle.dumps(args))):
                    yield pickle.loads(pickle.dumps(step))

            return call

        return decorate

    return gpu, calls


def test_on_zerogpu_a_run_is_one_call_and_ranks_are_placement():
    gpu, calls = spaces_like()
    local, seen = FakeEngine(), []
    engine = ZeroEngine(local, gpu)
    first = engine.run(REQUEST, preset("vanilla"), ep_size=2)
    second = engine.run(REQUEST, preset("macs", gamma=0.5), ep_size=2, reference=first, hooks=Hooks(seen.append))
    alone = local.run(REQUEST, preset("macs", gamma=0.5), ep_size=2, reference=first)
    assert len(calls) == 2 and calls[1][3].trace is None and calls[1][3].answer_A == first.answer_A
    assert [step.layer for step in seen] == list(range(LAYERS))
    assert second.trace.kl == alone.trace.kl and second.trace.answer == alone.trace.answer and second.trace.ep_size == 2
    assert [layer.dropped for layer in second.trace.layers] == [layer.dropped for layer in alone.trace.layers]
    assert not engine.info.measured and engine.info.found == "Runs on ZeroGPU: each run is lent one GPU, so ranks are placement and speed-up is modelled."


def test_on_zerogpu_a_stop_is_obeyed_and_bad_input_and_refusals_are_said():
    gpu, _ = spaces_like()
    local = FakeEngine(pace=0.05)
    engine, stop, seen = ZeroEngine(local, gpu), threading.Event(), []

    def at_second(step):
        seen.append(step)
        if len(seen) == 2:
            stop.set()

    with pytest.raises(Stopped):
        engine.run(REQUEST, preset("macs"), hooks=Hooks(at_second, stop))
    assert len(seen) == 2 and not [t for t in threading.enumerate() if t.name == "macs-run"]
    local.fail = ValueError("Write a prompt first.")
    with pytest.raises(ValueError, match="^Write a prompt first.$"):
        engine.run(REQUEST, preset("macs"))
    local.fail = KeyError("bug")
    with pytest.raises(EngineFailure, match=r"^The run failed on the GPU \(KeyError\); try again.$"):
        engine.run(REQUEST, preset("macs"))
    for message, said in (('You have exceeded your GPU quota. <a href="x">Log in</a>.', "You have exceeded your GPU quota. Log in."), ("2 errors\nidle\n  missing", "2 errors."), ("", "Error.")):
        refusal = type("Error", (Exception,), {"message": message})()
        with pytest.raises(EngineFailure, match=f"^ZeroGPU ended the call: {re.escape(said)}$"):
            ZeroEngine(local, spaces_like(refusal)[0]).run(REQUEST, preset("macs"))


def test_what_is_there_decides_which_engine_starts(monkeypatch):
    """ZeroGPU lends one GPU; one GPU or none is one process; several are ranks."""
    made = []
    local = lambda model, **options: made.append(("local", options["device"])) or FakeEngine()  # noqa: E731
    monkeypatch.setattr("macs.engine.local.LocalEngine", local)
    monkeypatch.setattr("macs.engine.ranks.RanksEngine", lambda model, count, *_, **__: made.append(("ranks", count)) or FakeEngine())
    monkeypatch.setattr("macs.model.count_experts", lambda *_: 24)
    for gpus, wanted in ((0, ("local", "cpu")), (1, ("local", "cuda")), (4, ("ranks", 4)), (7, ("ranks", 6))):
        monkeypatch.setattr("torch.cuda.device_count", lambda gpus=gpus: gpus)
        starting.start("model")
        assert made.pop() == wanted
    monkeypatch.setenv("SPACES_ZERO_GPU", "true")
    monkeypatch.setitem(sys.modules, "spaces", types.SimpleNamespace(GPU=spaces_like()[0]))
    assert starting.start("model").info.lent and made.pop() == ("local", "cuda")
    with pytest.raises(ValueError, match="ranks is 4, but ZeroGPU lends one GPU a call"):
        starting.start("model", 4)


def test_the_page_says_what_it_found_in_both_languages():
    info = FakeEngine().info
    said = {
        replace(info, device="cpu"): "Runs on the CPU in one process: ranks are placement and speed-up is modelled.",
        replace(info, device="cuda:0"): "Runs on the GPU in one process: ranks are placement and speed-up is modelled.",
        replace(info, device="cuda:0", lent=True): "Runs on ZeroGPU: each run is lent one GPU, so ranks are placement and speed-up is modelled.",
        replace(info, device="4 × cuda, nccl", measured=True): "Runs on 4 × cuda, nccl: each rank is a process with its share of the experts, and its times are measured.",
    }
    for what, sentence in said.items():
        assert what.found == sentence and Words("en").sentence(sentence) == sentence
        assert re.search("[一-鿿]", Words("zh").sentence(sentence))
