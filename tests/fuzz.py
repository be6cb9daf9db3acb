"""``python -m tests.fuzz trace|api|intake --minutes 10``: random and damaged input for one door of the workbench.

Every input must be taken whole or refused in one sentence (``ValueError`` or ``gr.Error``); anything else is a failure.
Hypothesis makes the inputs from a seed; a failure does not end the run, and is printed once for each place where it happens.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import logging
import math
import random
import sys
import time
import traceback
import warnings
import zipfile
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Callable

import gradio as gr
import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from PIL import Image

from macs.config import CHOICES, NAMED, RANGES, preset
from macs.engine.intake import MAX_PIXELS, MAX_RATIO, open_image, preview
from macs.trace_file import save_trace
from macs.view import curves, export, handlers, session, shown
from macs.view.page import build_page
from macs.view.settings import FIELDS
from macs.view.words import LANGUAGES, Words
from tests import case_files
from tests.fake_engine import FakeEngine
from tests.made import made_trace
from tests.markup import read

BATCH = 50  # inputs between looks at the clock
SLOW = 20.0  # seconds after which an input counts as a failure
MARK = "<img src=x onerror=alert(1)>\"'><script>alert(2)</script>"
numbers = st.one_of(st.integers(-5, 40), st.integers(), st.floats(), st.sampled_from([math.nan, math.inf, -math.inf, 1e308, -0.0, 2**63, 10**400]))
texts = st.one_of(st.text(max_size=20), st.sampled_from([MARK, "", "\ud800", "\x00", "../../etc/passwd", "‮" * 5, "a" * 5000]))
plain = st.one_of(st.none(), st.booleans(), numbers, texts)
json_values = st.recursive(plain, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=8)


@dataclass
class Report:
    """What a run of inputs came to."""

    inputs: int = 0
    taken: int = 0
    refused: int = 0
    slowest: float = 0.0
    failures: Counter = field(default_factory=Counter)  # place and kind -> how often
    first: dict[str, str] = field(default_factory=dict)  # place and kind -> the first one's traceback and input

    def attack(self, door: Callable[[Any], None], value: Any) -> None:
        """Push one input through ``door`` and note how it ended."""
        self.inputs += 1
        began = time.perf_counter()
        try:
            door(value)
            self.taken += 1
        except (ValueError, gr.Error) as error:
            said = getattr(error, "message", None) or str(error)
            own = type(error) is gr.Error or type(error).__module__.startswith("macs") or type(error) is ValueError
            if own and said.strip() and "\n" not in said.strip() and said.rstrip()[-1] in ".。" and len(said) < 6000:
                self.refused += 1
            else:
                self.fail(error, value, f"refused with {said[:120]!r}")
        except Exception as error:
            self.fail(error, value)
        took = time.perf_counter() - began
        self.slowest = max(self.slowest, took)
        if took > SLOW:
            self.failures[f"slow: {took:.0f} s"] += 1

    def fail(self, error: Exception, value: Any, said: str = "") -> None:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if "/macs/" in f.filename or f.filename.endswith("fuzz.py")]
        at = frames[-1] if frames else traceback.extract_tb(error.__traceback__)[-1]
        place = f"{type(error).__name__} at {Path(at.filename).name}:{at.lineno} {said}".strip()
        self.failures[place] += 1
        self.first.setdefault(place, f"{''.join(traceback.format_exception(error))[-1200:]}\ninput: {repr(value)[:300]}")

    def summary(self, name: str, seconds: float) -> str:
        lines = [f"{name}: {self.inputs} inputs in {seconds:.0f} s, {self.taken} taken, {self.refused} refused, {sum(self.failures.values())} failures, slowest {self.slowest:.2f} s"]
        return "\n".join(lines + [f"  {count} × {place}\n{self.first.get(place, '')}" for place, count in self.failures.most_common()])


# ---- traces


def trace_parts() -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return header and arrays of a small good trace with a picture."""
    picture = io.BytesIO()
    Image.new("RGB", (40, 30), "red").save(picture, "PNG")
    trace = made_trace(preset("macs", gamma=0.6), rows=3, columns=4, words=5, layers=2, experts=8)
    buffer = io.BytesIO()
    save_trace(replace(trace, images=(picture.getvalue(),), prompt=MARK, answer=MARK), buffer)
    buffer.seek(0)
    with np.load(buffer) as arrays:
        loaded = {name: arrays[name] for name in arrays.files}
    return json.loads(loaded.pop("header").tobytes()), loaded


HEADER, ARRAYS = trace_parts()


def packed(header: Any, arrays: dict[str, np.ndarray]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        text = json.dumps(header).encode() if not isinstance(header, bytes) else header
        for name, array in {"header": np.frombuffer(text, np.uint8), **arrays}.items():
            inner = io.BytesIO()
            np.lib.format.write_array(inner, array, allow_pickle=True)
            archive.writestr(f"{name}.npy", inner.getvalue())
    return buffer.getvalue()


@st.composite
def changed_array(draw, array: np.ndarray) -> np.ndarray:
    kind = draw(st.sampled_from(["value", "dtype", "shape", "fill", "object"]))
    if kind == "object":
        return np.array([MARK, None], dtype=object)
    if kind == "dtype":
        return array.astype(draw(st.sampled_from(["f2", "f8", ">f4", "i1", "u8", "i4", "c16", "S3", "U2", "?", "f4"])), casting="unsafe")
    if kind == "shape":
        shapes = [array[:-1], array[..., None], array.ravel(), array.T, np.zeros((0,) + array.shape[1:], array.dtype), np.concatenate([array, array])]
        return draw(st.sampled_from(shapes))
    new = array.copy()
    value = draw(st.sampled_from([np.nan, np.inf, -1, 0, 1, 2, 3, 5, 7, 8, 127, 1e30, -1e30]))
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind == "fill":
            new[...] = np.array(value).astype(array.dtype)
        elif new.size:
            new.flat[draw(st.integers(0, new.size - 1))] = np.array(value).astype(array.dtype)
    return new


@st.composite
def changed_header(draw) -> Any:
    header = json.loads(json.dumps(HEADER))
    at, path = header, draw(st.sampled_from(HEADER_PATHS))
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = draw(st.one_of(json_values, st.sampled_from([MARK, 0, 1, 3, 8, 0.5, True, [], {}, *NAMED, *(c for cs in CHOICES.values() for c in cs)])))
    return header


def _paths(value: Any, at: tuple = ()) -> list[tuple]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path for key, one in inner for path in [(*at, key), *_paths(one, (*at, key))]]


HEADER_PATHS = _paths(HEADER)


@st.composite
def damaged(draw, whole: bytes) -> bytes:
    """Flip, cut, repeat or swap some bytes."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        at, kind = draw(st.integers(0, max(len(data) - 1, 0))), draw(st.sampled_from(["flip", "cut", "zero", "repeat", "insert"]))
        if kind == "flip" and data:
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "cut":
            del data[at : at + draw(st.sampled_from([1, 16, len(data)]))]
        elif kind == "zero":
            data[at : at + 8] = bytes(8)
        elif kind == "repeat":
            data[at:at] = data[at : at + 64]
        else:
            data[at:at] = draw(st.binary(max_size=12))
    return bytes(data)


@st.composite
def trace_files(draw) -> bytes:
    kind = draw(st.sampled_from(["array", "array", "header", "header", "bytes", "lie", "four", "noise"]))
    if kind == "noise":
        return draw(st.binary(max_size=200))
    if kind == "header":
        return packed(draw(changed_header()), ARRAYS)
    if kind == "bytes":
        return draw(damaged(packed(HEADER, ARRAYS)))
    names = draw(st.lists(st.sampled_from(sorted(ARRAYS)), min_size=1, max_size=2))
    arrays = ARRAYS | {name: draw(changed_array(ARRAYS[name])) for name in names}
    if kind == "lie":
        return _lying(packed(HEADER, ARRAYS), draw(st.sampled_from(sorted(ARRAYS))), draw(st.sampled_from([(10**12,), (2**62, 2**62), (-1,), (5, 10**9)])))
    if kind == "array":
        return packed(HEADER, {name: array for name, array in arrays.items() if draw(st.integers(0, 40))})
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:  # four traces, of which one or more were changed
        for name, policy in (("vanilla", "vanilla"), ("same_gamma", "token_drop"), ("same_time", "token_drop"), ("policy", "macs")):
            own = HEADER | {"policy": preset(policy).to_dict()}
            archive.writestr(f"{name}.npz", packed(own, arrays if draw(st.booleans()) else ARRAYS))
    return buffer.getvalue()


def _lying(whole: bytes, name: str, shape: tuple[int, ...]) -> bytes:
    """Return the file with one array that says it is of another shape."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(whole)) as old, zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as new:
        for item in old.infolist():
            data = old.read(item)
            if item.filename == f"{name}.npy":
                inner = io.BytesIO()
                np.lib.format.write_array_header_1_0(inner, {"descr": ARRAYS[name].dtype.str, "fortran_order": False, "shape": shape})
                data = inner.getvalue() + bytes(64)
            new.writestr(item.filename, data)
    return buffer.getvalue()


def look_at_trace(data: bytes) -> None:
    """Open a file as the page does, and draw and export everything that it then shows."""
    from tempfile import NamedTemporaryFile

    with NamedTemporaryFile(suffix=".npz") as file:
        file.write(data)
        file.flush()
        content = shown.open_run(export.opened(file.name), "file")
    tab = session.Session(content, curves.curves(content))
    for lang in LANGUAGES:
        handlers.speak(tab, lang)
        for region, markup in tab.everything().items():
            harmless(region, markup)
    for focus in (("expert", 0), ("rank", 0), ("token", 0), None):
        handlers.look(tab, focus=focus)
    settled = {field.name: None for field in FIELDS}
    handlers.adjust(tab, settled)
    compile(export.script(content), "script.py", "exec")
    export.link(content), export.settings_json(content), export.pairs_csv(content).encode("utf-8-sig"), export.traces(content)
    regions = session.render(content, Words("en"), curves=tab.curves)
    assert "<script" not in export.report(regions, "", Words("en"))


def harmless(region: str, markup: str) -> None:
    """Nothing in the markup runs: no script element, no handler attribute, no foreign address; and all tags close."""
    for element in read(markup):
        assert element.tag not in ("script", "iframe", "object", "embed", "form", "base", "meta"), (region, element.tag)
        assert not [name for name in element.attrs if name.startswith("on")], (region, element.attrs)
        for name in ("src", "href", "data-src", "action", "xlink:href"):
            assert element.attrs.get(name, "data:image/").startswith(("data:image/", "#")), (region, element.attrs)
    markup.encode()  # it can be sent


# ---- parameters


@dataclass(frozen=True)
class Call:
    """A request to an entry point of the page's API, or an event of its page."""

    name: str
    inputs: tuple


settings_values = st.one_of(json_values, st.sampled_from(list(NAMED)), st.floats(0, 3), st.integers(1, 16))
right = {
    "policy": st.sampled_from(list(NAMED)), "gamma": st.floats(0, 3), "delta": st.floats(0, 4), "rho": st.floats(0, 2), "ep_size": st.sampled_from([1, 2, 4, 8, 16]),
    "baseline": st.sampled_from(list(NAMED)), "max_new_tokens": st.integers(1, 30), "prompt": texts, "image": st.none(), "trace": st.none(),
}  # fmt: skip
ORDER = {
    "compare": ("prompt", "image", "policy", "gamma", "delta", "rho", "ep_size", "baseline", "max_new_tokens"),
    "schedule": ("trace", "policy", "gamma", "delta", "rho", "ep_size"),
}


@st.composite
def calls(draw) -> Call:
    name = draw(st.sampled_from(["compare", "compare", "schedule", "adjust", "look", "restore", "start"]))
    if name in ORDER:
        wrong = draw(st.sets(st.sampled_from(ORDER[name]), max_size=2))
        return Call(name, tuple(draw(settings_values if key in wrong else right[key]) for key in ORDER[name]))
    if name == "look":
        whole = st.integers(-3, 70) | st.sampled_from([2**63, -(10**400)])  # events are read as whole numbers
        focus = st.tuples(texts | st.sampled_from(["token", "expert", "rank"]), whole)
        return Call(name, ({"layer": draw(whole), "beside": draw(plain), "focus": draw(st.none() | focus)},))
    if name == "restore":
        keys = st.sampled_from(["layer", "beside", "focus", *(f.name for f in FIELDS), *RANGES])
        return Call(name, (draw(st.dictionaries(keys, texts | st.sampled_from(["1", "9" * 30, "expert-1", "nan", "inf", "²"]), max_size=6)),))
    wrong = draw(st.sets(st.sampled_from([f.name for f in FIELDS]), max_size=2))
    return Call(name, ({key: draw(settings_values) for key in wrong},))


class Api:
    """The app's own functions behind their components, without a server."""

    def __init__(self) -> None:
        self.engine = FakeEngine()
        self.run = shown.open_run(export.around(made_trace(preset("macs", gamma=0.6))), "recorded")
        self.page = build_page(self.engine, [_Held(self.run.run)])
        self.named = {fn.api_name: fn for fn in self.page.fns.values() if fn.api_name in ORDER}
        self.good = shown_values(self.run)
        assert set(self.named) == set(ORDER)

    def __call__(self, call: Call) -> None:
        if call.name in ORDER:
            answer = asyncio.run(self.page.process_api(self.named[call.name], list(call.inputs)))["data"][0]
            json.dumps(answer.root, allow_nan=False)
            return
        tab = session.Session(self.run)
        values = self.good | call.inputs[0]
        if call.name == "look":
            changes = handlers.look(tab, **call.inputs[0])
        elif call.name == "restore":
            handlers.restore(tab, call.inputs[0])
            changes = tab.everything()
        elif call.name == "start":
            changes = {}
            for new in handlers.start(tab, self.engine, handlers.job.Line(), None, "What is this?", values):
                changes |= new
            assert not tab.running and "The run failed in the model" not in tab.status.text, tab.status.text
        else:
            changes = handlers.adjust(tab, values)
        for region, markup in changes.items():
            harmless(region, markup)


@dataclass(frozen=True)
class _Held:
    """An example that is in memory."""

    comparison: Any
    name: str = "made"
    prompt: str = "How many?"
    picture: None = None

    def load(self):
        return self.comparison


def shown_values(content: shown.Shown) -> dict[str, Any]:
    from macs.view.settings import values_of

    return values_of(*shown.settings_of(content.run))


# ---- pictures


SEEDS = [case_files.rotated(6), *(case_files.veiled(m) for m in ("RGBA", "LA", "WEBP")), case_files.ramp("PNG"), case_files.ramp("TIFF")]
SEEDS += [case_files.moving(kind) for kind in ("GIF", "WEBP", "PNG")] + [case_files.SVG, case_files.HTML, case_files.bomb(9000)]
SEEDS += [case_files.encoded(Image.fromarray(case_files.noise(24, 30, 3)), kind) for kind in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")]
SEEDS += [case_files.encoded(Image.new(mode, (9, 7)), kind) for mode, kind in (("CMYK", "JPEG"), ("P", "PNG"), ("1", "TIFF"), ("LAB", "TIFF"), ("I;16", "TIFF"), ("F", "TIFF"))]


@st.composite
def pictures(draw) -> bytes:
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=300))
    whole = draw(st.sampled_from(SEEDS))
    if draw(st.integers(0, 9)) == 0:  # the head of one, the rest of another
        other = draw(st.sampled_from(SEEDS))
        at = draw(st.integers(0, 60))
        return whole[:at] + other[at:]
    return draw(damaged(whole))


def look_at_picture(data: bytes) -> None:
    image = open_image(data).image
    assert image.mode == "RGB" and image.width * image.height <= MAX_PIXELS
    assert max(image.size) <= MAX_RATIO * min(image.size)
    assert preview(image).startswith(b"\x89PNG")


# ---- running


def doors() -> dict[str, tuple[st.SearchStrategy, Callable[[], Callable[[Any], None]]]]:
    return {"trace": (trace_files(), lambda: look_at_trace), "api": (calls(), Api), "intake": (pictures(), lambda: look_at_picture)}


def fuzz(name: str, *, minutes: float = 0.0, inputs: int = 0, start: int = 0) -> Report:
    """Push inputs through the door ``name`` until the time is up or ``inputs`` have been tried; the same seed makes the same ones."""
    strategy, make = doors()[name]
    door, report, until, batch = make(), Report(), time.monotonic() + 60 * minutes, 0
    while report.inputs < inputs or time.monotonic() < until:

        @seed(start + batch)
        @settings(max_examples=BATCH, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
        @given(strategy)
        def attack(value):
            if report.inputs < inputs or time.monotonic() < until:
                report.attack(door, value)

        attack()
        batch += 1
    return report


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("door", choices=list(doors()))
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    began = time.monotonic()
    logging.disable(logging.CRITICAL)  # what it would say is in the summary
    report = fuzz(args.door, minutes=args.minutes, start=args.seed)
    print(report.summary(f"{args.door} (seed {args.seed})", time.monotonic() - began))
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
