"""``python -m tests.load --users 40 --minutes 5``: many users at once against a freshly started app on loopback, through its public entry points.

Every user asks for runs and reschedules of a few inputs whose answers were collected one at a time before; some hang up, some
send what must be refused. In a browser, meanwhile, a slider is moved back and forth, and a run is started and stopped. Ends
with one JSON line, and exit code 1 if a result was mixed, lost or refused without a reason, or memory grew.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image

from macs.engine.base import EXAMPLES
from macs.view.job import MOST

ROOT = Path(__file__).parents[1]
GROWTH = 0.10  # of the app's memory, from before the load to after it
PATIENCE = 600  # seconds that a user waits for an answer
WARM = 10  # seconds of load before memory is first looked at
FULL = re.compile(r"The queue is full: (\d+) runs are in it\. Try again in a minute\.")
REFUSED = {  # what must be refused -> how
    '["What?", null, "macs", NaN, 1, 0.5, 4, "token_drop", 4]': "gamma is nan; use a number",
    '["What?", null, "macs", 1, 1, 0.5, 3, "token_drop", 4]': "ep_size is 3, which does not divide",
    '["", null, "macs", 1, 1, 0.5, 4, "token_drop", 4]': "Write a prompt first.",
    '["What?", {"path": "/etc/hostname", "meta": {"_type": "gradio.FileData"}}, "macs", 1, 1, 0.5, 4, "token_drop", 4]': "Only an uploaded file can be used",
}


@dataclass
class Tally:
    """What the users saw."""

    counts: Counter = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    most_in_line: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, kind: str, wrong: str = "") -> None:
        with self.lock:
            self.counts[kind] += 1
            self.wrong += [wrong] if wrong else []


def inputs() -> list[tuple[str, bytes | None, str, float]]:
    """Return requests that no two users could mistake for one another: prompt, picture, policy and gamma."""
    rng = np.random.default_rng(0)
    found: list[tuple[str, bytes | None, str, float]] = [("Say hello.", None, "macs", 0.8)]
    for i, (width, height) in enumerate(((96, 64), (64, 128), (120, 120), (200, 80), (60, 60), (224, 160), (48, 144))):
        buffer = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8)).save(buffer, "PNG")
        found.append((f"How many things of kind {i} are there?", buffer.getvalue(), ("macs", "token_drop", "macs_no_reroute")[i % 3], 0.5 + 0.1 * i))
    return found


class User:
    """One caller of the entry points."""

    def __init__(self, address: str) -> None:
        self.http = httpx.Client(base_url=f"{address}/gradio_api", timeout=httpx.Timeout(PATIENCE))

    def upload(self, name: str, content: bytes) -> dict[str, Any]:
        (path,) = self.http.post("/upload", files={"files": (name, content)}).raise_for_status().json()
        return {"path": path, "meta": {"_type": "gradio.FileData"}}

    def call(self, name: str, body: str, *, hang_up: bool = False) -> tuple[str, Any]:
        """Return ("complete", answer) or ("error", what was said); ("left", None) for a caller who hangs up."""
        event = self.http.post(f"/call/{name}", content=f'{{"data": {body}}}', headers={"content-type": "application/json"}).raise_for_status().json()["event_id"]
        with self.http.stream("GET", f"/call/{name}/{event}") as answer:
            if hang_up:
                return "left", None
            lines = "".join(answer.iter_text()).strip().split("\n\n")[-1].split("\n", 1)
        data = json.loads(lines[1].removeprefix("data: "))
        return lines[0].removeprefix("event: "), data[0] if isinstance(data, list) else data

    def compare(self, item: tuple[str, bytes | None, str, float]) -> tuple[str, Any]:
        prompt, picture, policy, gamma = item
        file = self.upload("picture.png", picture) if picture else None
        return self.call("compare", json.dumps([prompt, file, policy, gamma, 1.0, 0.5, 4, "token_drop", 4]))

    def schedule(self, gamma: float) -> tuple[str, Any]:
        file = self.upload("run.npz", (EXAMPLES / "counting" / "policy.npz").read_bytes())
        return self.call("schedule", json.dumps([file, "macs", gamma, 1.0, 0.5, 4]))


def untimed(document: Any) -> Any:
    """Return an answer without what differs from run to run: its times."""
    if isinstance(document, dict):
        return {name: untimed(value) for name, value in document.items() if name != "seconds"}
    return [untimed(value) for value in document] if isinstance(document, list) else document


def expected(address: str) -> tuple[list[Any], dict[float, Any]]:
    """Ask for everything once, one at a time."""
    user, runs, plans = User(address), [], {}
    for item in inputs():
        kind, answer = user.compare(item)
        assert kind == "complete", answer
        runs.append(untimed(answer))
    for gamma in (0.5, 1.0, 1.5):
        kind, answer = user.schedule(gamma)
        assert kind == "complete", answer
        plans[gamma] = untimed(answer)
    assert len({json.dumps(run["vanilla"]["layers"]) for run in runs}) == len(runs), "the inputs can be told apart by their loads"
    return runs, plans


def storm(address: str, users: int, seconds: float, right: tuple[list[Any], dict[float, Any]], seed: int = 0) -> Tally:
    """Let ``users`` ask at once until the time is up, and compare each answer with the one that was given alone."""
    tally, until = Tally(), time.monotonic() + seconds

    def use(number: int) -> None:
        rng, user = random.Random(seed * 1000 + number), User(address)
        while time.monotonic() < until:
            try:
                _one(user, rng, right, tally)
            except (httpx.HTTPError, ValueError, KeyError, IndexError) as error:
                tally.note("failed", f"{type(error).__name__}: {error}"[:300])

    with ThreadPoolExecutor(users) as pool:
        list(pool.map(use, range(users)))
    return tally


def _one(user: User, rng: random.Random, right: tuple[list[Any], dict[float, Any]], tally: Tally) -> None:
    kind = rng.choices(("compare", "schedule", "refused", "left"), (70, 15, 10, 5))[0]
    if kind == "refused":
        body, reason = rng.choice(list(REFUSED.items()))
        outcome, said = user.call("compare", body)
        tally.note(kind, "" if outcome == "error" and reason in json.dumps(said, ensure_ascii=False) else f"{body} was answered with {outcome} {said}"[:300])
        return
    if kind == "left":
        user.call("compare", json.dumps(["Say hello.", None, "macs", 0.8, 1.0, 0.5, 4, "token_drop", 4]), hang_up=True)
        return tally.note(kind)
    began, index, gamma = time.monotonic(), rng.randrange(len(right[0])), rng.choice(list(right[1]))
    outcome, answer = user.compare(inputs()[index]) if kind == "compare" else user.schedule(gamma)
    if outcome == "complete":
        tally.note(kind, "" if untimed(answer) == (right[0][index] if kind == "compare" else right[1][gamma]) else f"a {kind} got another's answer")
        with tally.lock:
            tally.seconds.append(time.monotonic() - began)
        return
    full = FULL.search(json.dumps(answer, ensure_ascii=False))
    tally.note("queue full" if full else "failed", "" if full else f"{kind}: {answer}"[:300])
    if full:
        tally.most_in_line = max(tally.most_in_line, int(full[1]))
        time.sleep(rng.uniform(1, 3))


# ---- in a browser


def browse(address: str, moves: int = 100) -> dict[str, Any]:
    """Move a slider ``moves`` times in two seconds, and start and stop a run; return what the page made of it."""
    from tests.browser import browser, ready

    with browser() as chromium:
        page = chromium.new_page(viewport={"width": 1400, "height": 900}, locale="en-GB")
        page.goto(address)
        ready(page)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url) if request.method == "POST" and "/run/" in request.url else None)
        last = page.evaluate(STORM, moves)
        page.wait_for_function(f"""document.querySelector('tr[data-row="policy"] th small').textContent.includes('γ {last:.2f}')""", timeout=120_000)
        page.wait_for_timeout(2000)
        settled = page.locator('tr[data-row="policy"] th small').inner_text()
        page.locator("#run").click()
        page.wait_for_function("/ahead|policy [0-9] of|full/.test(document.querySelector('#status').innerText)", timeout=120_000)
        waited = page.locator("#status").inner_text()
        if "full" not in waited:
            page.locator("#stop").click()
            page.wait_for_function("document.querySelector('#status').innerText.includes('Stopped.')", timeout=120_000)
        return {"moves": moves, "requests": len(asked), "last": f"γ {last:.2f}" in settled, "run": waited.split("\n")[0], "badge": page.locator(".badge").inner_text()}


STORM = """(moves) => new Promise((done) => {
  const slider = document.querySelector('#set-gamma input[type=range]');
  let left = moves, value = 0;
  const move = () => {
    value = left === 1 ? 1.35 : 0.5 + 0.05 * (left % 30);
    slider.value = value;
    slider.dispatchEvent(new Event('input', { bubbles: true }));
    if (--left) setTimeout(move, 20); else done(value);
  };
  move();
})"""


# ---- the app


def start_app(folder: Path) -> tuple[subprocess.Popen, str]:
    """Start ``app.py`` with its files in ``folder``; return it and its address once it answers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with (folder / "output").open("w") as output:
        app = subprocess.Popen([sys.executable, "app.py", "--port", str(port)], cwd=ROOT, env=os.environ | {"GRADIO_TEMP_DIR": str(folder / "files")}, stdout=output, stderr=output)
    address, until = f"http://127.0.0.1:{port}", time.monotonic() + 300
    while app.poll() is None and time.monotonic() < until:
        try:
            httpx.get(address, timeout=30).raise_for_status()
            return app, address
        except httpx.TransportError:
            time.sleep(0.2)
    raise SystemExit(f"The app did not start: {(folder / 'output').read_text()}")


def state(pid: int) -> dict[str, int]:
    """Return what the app holds: resident and peak MiB, threads, open files."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    mib = {name: int(lines[key].split()[0]) // 1024 for name, key in (("resident", "VmRSS"), ("peak", "VmHWM"))}
    return mib | {"threads": int(lines["Threads"]), "files": len(os.listdir(f"/proc/{pid}/fd"))}


def quiet(address: str, right: tuple[list[Any], dict[float, Any]]) -> float:
    """Wait until nobody is in the line, and ask for everything once more; return the seconds that the wait took."""
    user, began = User(address), time.monotonic()
    while FULL.search(json.dumps(user.compare(inputs()[0])[1])):
        time.sleep(1)
    waited = time.monotonic() - began
    for item, run in zip(inputs(), right[0]):
        kind, answer = user.compare(item)
        assert kind == "complete" and untimed(answer) == run, "after the load an answer differs"
    time.sleep(3)
    return waited


def faults(tally: Tally, before: dict[str, int], after: dict[str, int], seen: dict[str, Any] | None, said: str) -> list[str]:
    """Return what must not have happened, as sentences."""
    found = list(dict.fromkeys(tally.wrong))
    if not tally.counts["compare"] or not tally.counts["schedule"]:
        found.append("Nobody got an answer.")
    if tally.most_in_line > MOST:
        found.append(f"{tally.most_in_line} runs were in a line of {MOST}.")
    if after["resident"] > before["resident"] * (1 + GROWTH):
        found.append(f"Memory grew from {before['resident']} to {after['resident']} MiB.")
    if after["files"] > before["files"] + 10 or after["threads"] > before["threads"] + 10:
        found.append(f"Files or threads were left: {before} before, {after} after.")
    if "Traceback" in said:
        found.append(f"The app's log holds a traceback: {said[-2000:]}")
    if seen is not None and not (seen["last"] and seen["requests"] < seen["moves"]):
        found.append(f"The slider's moves did not collapse to the last: {seen}.")
    return found


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.load", description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, default=40)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    folder = Path(tempfile.mkdtemp(prefix="macs-load-"))
    app, address = start_app(folder)
    try:
        right = expected(address)
        storm(address, args.users, WARM, right, args.seed + 1)
        quiet(address, right)
        before, seen = state(app.pid), None
        with ThreadPoolExecutor(1) as aside:
            watching = aside.submit(browse, address) if Path(os.environ.get("CHROMIUM", "/usr/bin/chromium")).exists() else None
            tally = storm(address, args.users, 60 * args.minutes, right, args.seed)
            seen = watching.result() if watching else None
        emptied = quiet(address, right)
        after = state(app.pid)
        assert app.poll() is None, "the app ended"
    finally:
        app.terminate()
        app.wait(30)
        said = (folder / "output").read_text()
        shutil.rmtree(folder)
    found = faults(tally, before, after, seen, said)
    times = sorted(tally.seconds)
    facts = {"users": args.users, "minutes": args.minutes, **tally.counts, "most_in_line": tally.most_in_line, "emptied_after": round(emptied, 1)}
    facts |= {"median_s": round(times[len(times) // 2], 1), "slowest_s": round(times[-1], 1)} if times else {}
    facts |= {"before": before, "after": after, "browser": seen or "no Chromium: not looked at", "faults": found}
    for name, value in facts.items():
        print(f"{name:<14} {value}")
    print(json.dumps(facts, ensure_ascii=False))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
