"""What can be taken along: the traces, every pair as a table, the settings, a script that runs it again, the page as one file."""

from __future__ import annotations

import csv
import io
import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Mapping
from urllib.parse import urlencode

import numpy as np

from macs.config import NAMED, preset
from macs.engine.compare import NAMES, Comparison, alone, baseline_policy
from macs.trace import DROPPED, EXPANDED, KEPT, PADDING, REROUTED, Trace
from macs.trace_file import MAX_BYTES, load_trace, save_trace
from macs.view.settings import FIELDS, values_of
from macs.view.shown import Shown, settings_of
from macs.view.words import Words

STATUS = {KEPT: "kept", REROUTED: "rerouted", DROPPED: "dropped", EXPANDED: "expanded"}
COLUMNS = ("policy", "layer", "token", "text", "visual", "row", "column", "w", "slot", "expert", "executed_by", "status", "score", "weight")


def traces(shown: Shown) -> bytes:
    """Return the four traces that ran, as one archive; ``opened`` reads it back."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:  # the traces are compressed already
        for name in NAMES:
            inner = io.BytesIO()
            save_trace(getattr(shown.run, name), inner)
            archive.writestr(f"{name}.npz", inner.getvalue())
    return buffer.getvalue()


def opened(path: str | Path) -> Comparison:
    """Return the run in a file: the archive of ``traces``, or one trace; raises ValueError with one sentence otherwise."""
    try:
        with zipfile.ZipFile(path) as archive:
            sizes = {item.filename: item.file_size for item in archive.infolist()}
            if {f"{name}.npz" for name in NAMES} <= set(sizes):
                if sum(sizes.values()) > MAX_BYTES:
                    raise ValueError(f"This file unpacks to {sum(sizes.values()):,} bytes; at most {MAX_BYTES:,} are read.")
                inner = {name: io.BytesIO(archive.read(f"{name}.npz")) for name in NAMES}
                return _together({name: load_trace(file, max_bytes=MAX_BYTES // len(NAMES)) for name, file in inner.items()})
    except ValueError:
        raise
    except Exception:  # zipfile and zlib answer damage with almost any of them
        raise ValueError("This file is no trace; choose a file that the page or the command line wrote.") from None
    return around(load_trace(path))


def _together(read: dict[str, Trace]) -> Comparison:
    """Return four traces of a file as one run; raises ValueError if they are not four policies on one input."""
    own, presets = read["policy"], [read[name].policy.preset for name in NAMES]
    inputs = [(t.ep_size, t.num_experts, t.top_k, t.images, t.lacks, t.tokens.id_T.tolist(), [x.layer for x in t.layers]) for t in read.values()]
    roles = presets[0] == "vanilla" and presets[1] == presets[2] and presets[2] in NAMED if own.scored else set(presets) == {"vanilla"}
    if not roles or any(other != inputs[0] for other in inputs):
        raise ValueError("The four traces of this file are not four policies on one input; save it again with the workbench.")
    return Comparison(**read, same_time_reached=read["same_time"].straggler() >= own.straggler() - 1e-9)


def around(trace: Trace) -> Comparison:
    """Return a comparison in which one trace ran and the other three are scheduled from its scores, without answers."""

    def planned(policy) -> Trace:
        return replace(trace.reschedule(policy), answer="", kl=None)

    if not trace.scored:
        return alone(trace)
    base = "token_drop"
    same_gamma = planned(baseline_policy(base, trace.policy, trace.policy.gamma))
    start = Comparison(planned(preset("vanilla")), same_gamma, same_gamma, trace, True)
    moved = start.plan(trace.policy, baseline=base)
    return replace(start, same_time=moved.same_time, same_time_reached=moved.same_time_reached)


def pairs_csv(shown: Shown) -> str:
    """Return every pair of every layer under baseline and policy, one line each."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    for trace in (shown.base, shown.policy):
        for layer in trace.layers:
            writer.writerows(_lines(trace, layer))
    return buffer.getvalue()


def _lines(trace: Trace, layer):
    tokens, decision = trace.tokens, layer.decision
    for t, slot in zip(*(decision.status_TC[:, : trace.top_k] != PADDING).nonzero()):
        origin, status = int(layer.expert_TK[t, slot]), int(decision.status_TC[t, slot])
        executed = int(decision.expert_TC[t, slot]) if status != DROPPED else ""
        row, column = tokens.position_T2[t] if tokens.visual_T[t] else ("", "")
        text = _harmless(tokens.text_T[t])
        yield (
            *(trace.policy.preset, layer.layer, t, text, int(tokens.visual_T[t]), row, column, _number(decision.token_weight_T[t]), slot),
            *(origin, executed, STATUS[status], _number(layer.scores_TN[t, origin]), _number(decision.weight_TC[t, slot])),
        )


def _number(value: float) -> str:
    """Return six digits, or nothing where the trace lacks the number."""
    return "" if np.isnan(value) else f"{value:.6g}"


def _harmless(text: str) -> str:
    """Return text that a spreadsheet takes for text, not for a formula."""
    return f"'{text}" if text.lstrip()[:1] in ("=", "+", "-", "@") and text.strip() else text


def settings_dict(shown: Shown) -> dict[str, Any]:
    """Return every setting of the page as plain JSON values."""
    policy, baseline, ep_size = settings_of(shown.now)
    return {"policy": policy.to_dict(), "preset": policy.preset, "baseline": baseline, "ep_size": ep_size, "layer": shown.number, "beside": shown.beside}


def settings_json(shown: Shown) -> str:
    """Return ``settings_dict`` as text."""
    return json.dumps(settings_dict(shown), indent=2) + "\n"


def script(shown: Shown) -> str:
    """Return a Python program that runs the same request under the same policies, or reads the trace that no run here made."""
    if not shown.scored:
        return _reading(shown.policy.ep_size)
    policy, baseline, ep_size = settings_of(shown.now)
    run = shown.run.policy
    image = 'open_image("image.png").image' if run.images else "None"
    fields = ", ".join(f"{name}={value!r}" for name, value in policy.to_dict().items())
    return f"""from macs.config import Policy
from macs.engine.base import Request
from macs.engine.compare import compare
from macs.engine.intake import open_image
from macs.engine.start import start

engine = start({str(run.about.get("model", "assets/demo_model"))!r})
request = Request({run.prompt!r}, {image})
policy = Policy({fields})
result = compare(engine, request, policy, baseline={baseline!r}, ep_size={ep_size})
for name in ("vanilla", "same_gamma", "same_time", "policy"):
    trace = getattr(result, name)
    print(name, trace.answer, [(x.kept, x.rerouted, x.dropped, x.straggler({ep_size})) for x in trace.layers])
"""


def _reading(ep_size: int) -> str:
    return f"""import macs

trace = macs.load_trace("policy.npz")  # from the archive of this page
for layer in trace.layers:
    print(layer.layer, layer.pairs, layer.rank_tokens({ep_size}), layer.straggler({ep_size}), layer.expert_straggler())
"""


def link(shown: Shown) -> str:
    """Return the query that restores example, settings and view; of the settings only those that differ from the run's."""
    now, recorded = (values_of(*settings_of(c)) for c in (shown.now, shown.run))
    changed = {name: value for name, value in now.items() if value != recorded[name] and name != "preset"}
    focus = {"focus": f"{shown.focus[0]}-{shown.focus[1]}"} if shown.focus else {}
    example = {"example": shown.example} if shown.example else {}  # a picture of the reader's own does not fit into a link
    return "?" + urlencode({**example, "layer": shown.layer, "beside": shown.beside, **focus, **changed})


def settings_from(query: Mapping[str, str], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``values`` with those of a link put in; what a link holds wrongly is left out."""
    found = dict(values)
    for field in FIELDS:
        text = query.get(field.name)
        if text is None:
            continue
        if field.name == "ep_size" and text.isdigit():
            found["ep_size"] = int(text)
        elif field.kind in ("choice", "menu") and text in field.values:
            found[field.name] = text
        elif field.kind not in ("choice", "menu"):
            try:
                found[field.name] = int(text) if field.step == 1 else float(text)
            except ValueError:
                continue
    return found


def report(regions: Mapping[str, str], css: str, words: Words) -> str:
    """Return the page's regions as one file that needs nothing else."""
    order = ("header", "status", "findings", "ledger", "weights", "losses", "queues", "selection", "trade", "gantt", "heat", "difference", "layers", "tokens", "method")
    body = "".join(f'<section id="{name}">{regions[name]}</section>' for name in order)
    return (
        f'<!doctype html><html lang="{words.lang}"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{words('title')}</title><style>{css}</style>{regions['picture']}</head>"
        f'<body><div class="gradio-container"><div id="page" class="report"><div class="html-container">{body}</div></div></div></body></html>'
    )
