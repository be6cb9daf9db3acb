"""``python app.py --ranks 2`` in a real browser: the times on the page are those that the ranks measured."""

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from playwright.sync_api import expect

from macs.config import preset
from macs.engine.base import Request
from macs.engine.compare import compare, save_comparison
from macs.engine.local import LocalEngine
from tests.browser import SIZES
from tests.processes import children, gone

ROOT = Path(__file__).parents[1]
MODEL = ROOT / "assets" / "demo_model"


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    folder = tmp_path_factory.mktemp("examples")
    save_comparison(compare(LocalEngine(str(MODEL)), Request("Say hello.", None, 2), preset("macs")), folder / "words")
    (folder / "examples.json").write_text(json.dumps([{"family": "words", "prompt": "Say hello."}]))
    return folder


@pytest.fixture(scope="module")
def app(examples):
    """The app as a user starts it, on a free port; yields its process and address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "app.py", "--ranks", "2", "--device", "cpu", "--port", str(port), "--examples", str(examples)]
    process = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1", "GRADIO_ANALYTICS_ENABLED": "False"})
    address = f"http://127.0.0.1:{port}"
    until = time.monotonic() + 180
    while True:
        try:
            urllib.request.urlopen(address, timeout=5).close()
            break
        except OSError:
            assert process.poll() is None and time.monotonic() < until, "the app did not start"
            time.sleep(0.5)
    yield process, address
    process.kill()
    process.wait()


def test_the_page_shows_the_time_of_each_rank(app, chromium):
    process, address = app
    pids = children(process.pid)
    assert len(pids) >= 2
    page = chromium.new_context(viewport=SIZES["desktop"], locale="en-GB").new_page()
    page.goto(address)
    expect(page.locator("#ledger table")).to_be_visible(timeout=90_000)
    page.locator("#prompt textarea").fill("How many circles are there, and what colour is each of them?")
    page.locator("#run").click()
    expect(page.locator(".badge")).to_contain_text("measured", timeout=120_000)
    expect(page.locator("#status")).to_contain_text("on 2 ranks, times measured")
    figure = page.locator("svg", has_text="milliseconds in the experts")
    text = figure.text_content()
    assert len(re.findall(r"\d[\d.]* ms", text)) >= 3  # vanilla, the baseline and MACS, in one run
    layers = json.loads((MODEL / "config.json").read_text())["text_config"]["num_hidden_layers"]
    assert figure.locator("rect.gs").count() == 3 * layers  # the slowest rank of each layer is marked
    page.context.close()
    process.terminate()
    process.wait(timeout=30)
    assert gone(pids)
