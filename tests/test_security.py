"""What a stranger may not do: read the host, make it fetch, run something in a reader's browser, fill its memory, see another's run."""

import ast
import io
import json
import os
import pickle
import re
import threading
import time
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
from gradio_client import Client, handle_file
from PIL import Image

from macs.config import preset
from macs.trace_file import MAX_BYTES, load_trace, save_trace
from macs.view import export, page, session, shown
from macs.view.page_guard import MAX_BODY
from macs.view.words import LANGUAGES, Words
from tests import case_files, fuzz
from tests.fake_engine import FakeEngine
from tests.made import made_trace

MARK = fuzz.MARK
PICTURE = case_files.plain(40, 30)


# ---- nothing is fetched, nothing else is run


@pytest.fixture
def bait(monkeypatch):
    """A server on loopback, and everything that gradio was asked to fetch: it would refuse loopback by itself, but not the world."""
    asked = []

    class Reply(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(PICTURE)

        def log_message(self, *_):
            pass

    async def fetch(url, *_, **__):
        asked.append(url)
        raise ConnectionError

    monkeypatch.setattr("gradio.processing_utils.async_ssrf_protected_download", fetch)
    monkeypatch.setattr("gradio.routes.secure_url_stream_response", fetch)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Reply)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/x.png", asked
    server.shutdown()


def ask(address: str, name: str, values: list) -> str:
    """What the caller of an entry point is told in the end."""
    event = httpx.post(f"{address}/gradio_api/call/{name}", json={"data": values}).json()["event_id"]
    return httpx.get(f"{address}/gradio_api/call/{name}/{event}", timeout=60).text


@pytest.mark.parametrize("scheme", ["http", "https", "HTTP", "file", "ftp"])
def test_an_address_is_refused_and_never_fetched(scheme, demo_page, bait):
    address, asked = bait
    address = scheme + address.removeprefix("http")
    file = {"path": address, "url": address, "meta": {"_type": "gradio.FileData"}}
    for name, values in (("compare", ["What?", file, "macs", 1, 1, 0.5, 4, "token_drop", 1]), ("schedule", [file, "macs", 1, 1, 0.5, 4])):
        assert "Send the file itself; addresses are not fetched." in ask(demo_page, name, values)
    for route in (f"file={address}", f"proxy={address}", "file=http%3A%2F%2F93.184.216.34%2Fx.png"):
        answer = httpx.get(f"{demo_page}/gradio_api/{route}")
        assert answer.status_code in (400, 403, 404) and PICTURE not in answer.content
    assert asked == []


def test_callers_choose_neither_model_nor_device_nor_code(client):
    """The parameters of the entry points are these and no others."""
    described = client.view_api(return_format="dict")["named_endpoints"]
    names = {name: [p["parameter_name"] for p in endpoint["parameters"]] for name, endpoint in described.items()}
    policy = ["policy", "gamma", "delta", "rho", "ep_size"]
    assert names == {"/compare": ["prompt", "image", *policy, "baseline", "max_new_tokens"], "/schedule": ["trace", *policy]}


# ---- limits


def test_uploads_and_requests_are_limited(demo_page):
    assert httpx.get(f"{demo_page}/config").json()["max_file_size"] == 512 * 1024**2
    body = json.dumps({"data": ["a" * MAX_BODY]}).encode()
    told = httpx.post(f"{demo_page}/gradio_api/call/compare", content=body)
    assert told.status_code == 413 and told.text == "A request has at most 1,000,000 bytes; upload files first."
    untold = httpx.post(f"{demo_page}/gradio_api/call/compare", content=iter([body[:500_000], body[500_000:]]))
    assert untold.status_code >= 400
    assert "event_id" in httpx.post(f"{demo_page}/gradio_api/call/schedule", json={"data": [None, "macs", 1, 1, 0.5, 4]}).json()


def test_a_book_as_a_prompt_is_refused_before_it_is_tokenised(client):
    with pytest.raises(Exception, match="This prompt has 900,000 characters; at most 200,000 are read. Use a shorter one."):
        client.predict(prompt="word " * 180_000, api_name="/compare")


# ---- traces


def saved(trace) -> bytes:
    buffer = io.BytesIO()
    save_trace(trace, buffer)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def hostile():
    """A trace that says markup wherever it holds text."""
    trace = made_trace(preset("macs", gamma=0.6), rows=3, columns=4, words=5, layers=2, experts=8)
    texts = tuple(f"{MARK}{i}" for i in range(len(trace.tokens)))
    about = {"model": f"../{MARK}", "source": MARK, "notices": [MARK], "times": MARK, "parameters": 1e6, "device": MARK}
    return replace(trace, prompt=MARK, answer=f"{MARK} {MARK}", tokens=replace(trace.tokens, text_T=texts), images=(PICTURE,), about=about)


@pytest.mark.parametrize("lang", LANGUAGES)
def test_text_of_a_trace_file_is_text_in_every_region_and_in_the_exported_page(lang, hostile, tmp_path):
    (tmp_path / "hostile.npz").write_bytes(saved(hostile))
    content = shown.open_run(export.opened(tmp_path / "hostile.npz"), "file")
    for focus in (("token", 3), ("token", 9), ("expert", 1), ("rank", 0), None):
        regions = session.render(replace(content, focus=focus), Words(lang))
        for name, markup in regions.items():
            fuzz.harmless(name, markup)
    report = export.report(regions, "", Words(lang))
    assert "&lt;script&gt;" in report and not re.search(r"<script|<img[^>]+onerror|javascript:", report)


def test_the_exported_program_holds_foreign_text_as_constants_alone(hostile):
    quoting = replace(hostile, prompt="'\"\\\n\"\"\"); import os; os.system('x') #", about={"model": "'); import os #"})
    program = ast.parse(export.script(shown.open_run(export.around(quoting), "file")))
    assert {node.module for node in ast.walk(program) if isinstance(node, ast.ImportFrom)} == {"macs.config", "macs.engine.base", "macs.engine.compare", "macs.engine.intake", "macs.engine.start"}
    assert not [node for node in ast.walk(program) if isinstance(node, ast.Import)]
    assert quoting.prompt in {node.value for node in ast.walk(program) if isinstance(node, ast.Constant)}


class Trap:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (Path(self.path),)


def test_no_pickle_in_a_trace_is_run(hostile, tmp_path):
    sprung = tmp_path / "sprung"
    pickle.loads(pickle.dumps(Trap(tmp_path / "proof")))
    assert (tmp_path / "proof").exists(), "the trap works"
    with np.load(io.BytesIO(saved(hostile))) as arrays:
        header, parts = json.loads(arrays["header"].tobytes()), {name: arrays[name] for name in arrays.files if name != "header"}
    for name in ("tokens.id_T", "layer0.scores_TN", "image0", "layer1.seconds.schedule"):
        header["layers"][1]["seconds"] = ["schedule"]
        with pytest.raises(ValueError, match="do not fit together"):
            load_trace(io.BytesIO(fuzz.packed(header, {"layer1.seconds.schedule": np.ones(1)} | parts | {name: np.array([Trap(sprung)], dtype=object)})))
    assert not sprung.exists()


def rewritten(whole: bytes, name: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(whole)) as old, zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as new:
        for item in old.infolist():
            new.writestr(item.filename, content if item.filename == name else old.read(item))
    return buffer.getvalue()


@pytest.mark.parametrize("shape", [(10**12, 8), (2**40,), (2**62, 2**62), (-1, 8), ()])
def test_an_array_that_says_it_is_huge_is_refused_before_memory_is_taken(shape, hostile):
    inner = io.BytesIO()
    np.lib.format.write_array_header_1_0(inner, {"descr": "<f4", "fortran_order": False, "shape": shape})
    before = psutil.Process().memory_info().rss
    with pytest.raises(ValueError, match="do not fit together"):
        load_trace(io.BytesIO(rewritten(saved(hostile), "layer0.scores_TN.npy", inner.getvalue() + bytes(1000))))
    assert psutil.Process().memory_info().rss - before < 50e6


def test_bombs_are_refused_by_what_they_say_they_unpack_to(hostile, tmp_path):
    """Zeros shrink a thousandfold; in an archive of four traces the inner files are looked at too."""
    zeros = bytes(60_000_000)
    bomb = rewritten(saved(hostile), "layer0.scores_TN.npy", zeros)
    assert len(bomb) < 200_000
    with pytest.raises(ValueError, match="unpacks to .* bytes; at most 50,000,000 are read"):
        load_trace(io.BytesIO(bomb), max_bytes=50_000_000)
    outer = tmp_path / "four.zip"
    with zipfile.ZipFile(outer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("vanilla", "same_gamma", "same_time", "policy"):
            archive.writestr(f"{name}.npz", saved(hostile))
        for i in range(3):
            archive.writestr(f"more{i}", b"")
    lying = outer.read_bytes()
    with zipfile.ZipFile(outer) as archive:
        assert sum(item.file_size for item in archive.infolist()) < 1e6
    size = (2**31).to_bytes(4, "little")  # what the directory says of the last, empty, member
    at = lying.rindex(b"PK\x01\x02") + 24
    outer.write_bytes(lying[:at] + size + lying[at + 4 :])
    with pytest.raises(ValueError, match=f"unpacks to .* bytes; at most {MAX_BYTES:,} are read"):
        export.opened(outer)


def test_pictures_in_a_trace_pass_the_same_intake(hostile):
    for content, said in ((case_files.bomb(9000), "megapixels"), (case_files.SVG, "cannot be read as an image"), (b"", "empty")):
        with pytest.raises(ValueError, match=said):
            shown.open_run(export.around(replace(hostile, images=(content,))), "file")
    with pytest.raises(ValueError, match="values of the wrong kind"):
        load_trace(io.BytesIO(saved(replace(hostile, images=(PICTURE,) * 17))))


def test_a_header_that_is_deep_or_huge_is_refused_in_one_sentence(hostile):
    for text in (b"[" * 100_000, b"{}", b"null", b'"' + b"a" * 10**6 + b'"', b"9" * 5000, b"\xff\xfe"):
        inner = io.BytesIO()
        np.lib.format.write_array(inner, np.frombuffer(text, np.uint8))
        with pytest.raises(ValueError, match=r"^This file is not a .*trace.*\.$"):
            load_trace(io.BytesIO(rewritten(saved(hostile), "header.npy", inner.getvalue())))


def test_four_traces_of_different_inputs_are_no_run(hostile, tmp_path):
    other = made_trace(preset("macs"), rows=2, columns=2, words=5, layers=2, experts=8)
    runs = {"vanilla": hostile.reschedule(preset("vanilla")), "same_gamma": hostile.reschedule(preset("token_drop")), "same_time": hostile.reschedule(preset("token_drop"))}
    for name, own in (("good", hostile), ("bad", other)):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            for role, trace in (runs | {"policy": own}).items():
                archive.writestr(f"{role}.npz", saved(trace))
    assert export.opened(tmp_path / "good").policy.answer == hostile.answer
    with pytest.raises(ValueError, match="are not four policies on one input"):
        export.opened(tmp_path / "bad")


# ---- sessions and files


@pytest.fixture
def brief(monkeypatch, tmp_path):
    """A page that keeps uploads for a second."""
    monkeypatch.setattr(page, "KEEP_UPLOADS", 1)
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "cache"))
    held = fuzz._Held(export.around(made_trace(preset("macs", gamma=0.6))))
    blocks = page.build_page(FakeEngine(), [held])
    _, address, _ = blocks.launch(prevent_thread_lock=True, quiet=True, server_name="127.0.0.1", **page.launch_options())
    yield blocks, address.rstrip("/"), tmp_path / "cache"
    blocks.close()


def event(blocks, address: str, handler: str, session_hash: str, values: list, data=None) -> list:
    """Trigger an event of the page as its browser does."""
    found = [fn for fn in blocks.fns.values() if fn.fn is not None and fn.fn.__qualname__.endswith(f".{handler}")]
    body = {"fn_index": found[0]._id, "data": values, "session_hash": session_hash, "event_data": data}
    return httpx.post(f"{address}/gradio_api/run/predict", json=body, timeout=60).json()["data"]


def test_two_tabs_never_see_each_others_content(brief):
    blocks, address, _ = brief
    values = fuzz.shown_values(shown.open_run(export.around(made_trace(preset("macs", gamma=0.6))), "recorded"))

    def ledger(tab: str, gamma: float) -> str:
        answer = event(blocks, address, "adjust", tab, [None, *(values | {"gamma": gamma}).values()])
        return answer[session.ALL.index("ledger")]

    first = ledger("first", 1.4)
    assert "γ 1.40" in first and "γ 0.90" in ledger("second", 0.9)
    again = event(blocks, address, "focus", "first", [None], {"kind": "expert", "value": "3"})
    assert "γ 1.40" in str(event(blocks, address, "language", "first", [None], {"value": "zh"})[session.ALL.index("ledger")])
    assert "γ 0.90" not in str(again)
    assert "γ 0.60" in str(event(blocks, address, "language", "third", [None], {"value": "zh"}))


def test_uploads_and_downloads_are_deleted(brief, tmp_path, monkeypatch):
    blocks, address, cache = brief
    file, removed, remove = tmp_path / "photo.png", set(), os.remove
    Image.new("RGB", (64, 64), "red").save(file)
    monkeypatch.setattr(os, "remove", lambda path: removed.add(Path(path).name) or remove(path))
    Client(address, verbose=False).predict(prompt="What?", image=handle_file(file), api_name="/compare")
    event(blocks, address, "pack", "tab", [None])
    until = time.monotonic() + 60
    while time.monotonic() < until and not removed >= {"photo.png", "macs-run.zip"}:
        time.sleep(0.2)
    assert removed >= {"photo.png", "macs-run.zip"} and not [path for path in cache.rglob("*") if path.is_file()]
