"""Maps over the picture: what each patch counts, and what each patch lost. Cells lie exactly where the model saw them."""

from __future__ import annotations

import json
from typing import Callable, NamedTuple, Sequence

import numpy as np

from macs.engine.base import DEMO_MODEL
from macs.trace import DROPPED, KEPT, REROUTED, Trace
from macs.view import raster
from macs.view.markup import FATE_CLASS, esc, heading, num, segments
from macs.view.raster import MANY
from macs.view.shown import Shown
from macs.view.words import Words

MAX_STACKED = 2  # pictures above one another; more are shown one at a time
MAX_WINDOWS = 1024  # more patches than this are too small for windows; colour then
MAX_STRIPS = 4  # slots drawn side by side; above it the lost share fills the patch
KEY = (0.1, 0.25, 0.5, 1.0)  # weights in the map's key
KEY_SIDE = 23  # pixels of the key's largest square
EQUAL = 0.005  # weights that differ by less are written alike
ROUNDING = 1e-4  # nats by which the entropies of equal features may differ
ENTROPY_STUDY = DEMO_MODEL.parent / "results" / "entropy.json"


class Strip(NamedTuple):
    """A part of a patch in a map of fates: its token, what became of it, its place as fractions of the picture."""

    token: int
    status: int
    x: float
    y: float
    width: float
    height: float


def weights(shown: Shown, words: Words) -> str:
    """Return the weight map: every patch opens a centred square of area w on the photograph."""
    trace, layer = shown.policy, shown.layers[2]
    visual_T = trace.tokens.visual_T & trace.tokens.valid_T
    if not (shown.pictures and visual_T.any()):
        return heading(words("weights_t")) + _empty(words)
    if not _placed(trace):
        return heading(words("weights_t")) + _empty(words, "unplaced_map")
    w_T = layer.decision.token_weight_T
    many = visual_T.sum() > MANY
    mode = "windows" if visual_T.sum() <= MAX_WINDOWS else "colour"
    switch = "" if many else segments("map", ((m, words(m)) for m in ("windows", "colour")), mode, words("weights_t"))
    entropy_T = trace.entropy(trace.policy.entropy_source, layer)

    def cell(t: int) -> str:
        row, column = trace.tokens.position_T2[t]
        label = words("patch_alt", r=row, c=column, w=num(w_T[t]), h=num(entropy_T[t]))
        return f'<button type="button" class="pc" data-token="{t}" tabindex="-1" style="{_box(trace, t)};--w:{w_T[t]:.3f}" aria-label="{esc(label)}"></button>'

    def cells(i: int) -> str:
        shown_T = np.nonzero(visual_T & (trace.tokens.image_T == i))[0]
        return _picture_of(shown, i, shown_T, w_T, words) if many else "".join(cell(t) for t in shown_T)

    total = words("weights_sum", n=int(visual_T.sum()), s=num(w_T[visual_T].sum(), 1), r=num(layer.decision.visual_ratio))
    notes = [words("weights_s"), total]
    if trace.policy.load == "tokens":
        notes.insert(0, words("weights_all_one", name=words.policy(trace.policy.preset)))
    if np.ptp(w_T[visual_T]) < EQUAL:  # a plain picture, a single patch, or a δ of 0
        notes.insert(0, words("weights_equal", w=num(w_T[visual_T].mean())))
    elif np.ptp(entropy_T[visual_T]) < ROUNDING:  # a plain picture: standardising brings the rounding out
        notes.insert(0, words("weights_noise"))
    notes.append(proxy_note(trace, shown.number, words))
    key = "".join(f'<span><i style="width:{KEY_SIDE * w**0.5 + 2:.0f}px;height:{KEY_SIDE * w**0.5 + 2:.0f}px;--w:{w}"></i>{w:g}</span>' for w in KEY)
    return (
        heading(words("weights_t"), switch)
        + _frames(shown, words)
        + _maps(shown, cells, "wmap many" if many else "wmap", words("map_alt"), mode)
        + f'<div class="keyw"><span>w</span>{key}</div><p class="fn">{esc(" ".join(filter(None, notes)))}</p>'
    )


def _picture_of(shown: Shown, i: int, shown_T: np.ndarray, w_T: np.ndarray, words: Words) -> str:
    """Return the weights of one picture's many patches as one picture, and over it one button: page.js tells Python the place."""
    cell_T4 = shown.policy.tokens.cell_T4[shown_T]
    if not len(cell_T4):
        return ""
    picture = shown.pictures[i]
    width, height = (float(v) for v in np.median(cell_T4[:, 2:] - cell_T4[:, :2], 0))
    label = words("places_alt", n=len(shown_T))
    return (
        '<i class="through w-low"></i>'
        + raster.layer("w-high", raster.mask(cell_T4, w_T[shown_T], picture.width, picture.height))
        + f'<button type="button" class="places" data-place="{i}" data-across="{width:.6f}" data-down="{height:.6f}" aria-label="{esc(label)}"></button>'
    )


def proxy_note(trace: Trace, number: int, words: Words) -> str:
    """Say how well w finds object patches at the entropy source in use (`study entropy`); empty for other models."""
    if trace.about.get("model") != DEMO_MODEL.name or not ENTROPY_STUDY.is_file():
        return ""
    study = json.loads(ENTROPY_STUDY.read_text(encoding="utf-8"))
    source = trace.policy.entropy_source
    found = study["sources"].get({"first": study["first"], "layer": f"layer {number}"}.get(source, source))
    if found is None:
        return ""
    key = "proxy_inverted" if found["high"] < 0.5 else "proxy_fair" if found["low"] > 0.5 else "proxy_chance"
    return words(key, a=num(found["auroc"]), s=words(f"c_entropy_source_{source}"), n=found["images"])


def losses(shown: Shown, words: Words) -> str:
    """Return both loss maps, the baseline's beside the policy's, and what was lost in numbers."""
    top_k = shown.policy.top_k
    strips = "fates_s2" if top_k == 2 else "fates_s" if top_k <= MAX_STRIPS else "fates_share"
    aside = f"<small>{esc(words(strips, k=top_k, last=top_k - 1))}</small>" if shown.pictures else ""
    halves = "".join(_loss(trace, shown, words) for trace in (shown.base, shown.policy))
    return heading(words("lost_t", l=shown.number), aside) + f'<div class="pairm">{halves}</div>'


def _loss(trace: Trace, shown: Shown, words: Words) -> str:
    layer, tokens = trace.layers[shown.layer], trace.tokens
    status_TK = layer.decision.status_TC[:, : trace.top_k]
    lost_TK = np.isin(status_TK, (DROPPED, REROUTED)) & (tokens.visual_T & tokens.valid_T)[:, None]

    name = words.policy(trace.policy.preset)
    strips = [strip for t in np.nonzero(lost_TK.any(1))[0] for strip in _strips(trace, int(t), status_TK[t])] if _placed(trace) else []
    picture = over_picture(shown, strips, name, words)
    caption = loss_text(trace, shown.layer, words)
    return f'<div data-trace="{"policy" if trace is shown.policy else "base"}"><h3>{esc(name)}</h3>{picture}{caption}</div>'


def over_picture(shown: Shown, strips: Sequence[Strip], label: str, words: Words) -> str:
    """Return the pictures in grey with strips over them, or a frame that says why there is no map."""
    trace = shown.policy
    if not (shown.pictures and trace.tokens.visual_T.any()):
        return _empty(words)
    if not _placed(trace):
        return _empty(words, "unplaced_map")
    image_T = trace.tokens.image_T
    many = (trace.tokens.visual_T & trace.tokens.valid_T).sum() > MANY

    def cells(i: int) -> str:
        own = [strip for strip in strips if image_T[strip.token] == i]
        return _seen_through(own, shown.pictures[i].width, shown.pictures[i].height) if many else "".join(map(_strip, own))

    return _maps(shown, cells, "fate", label)


def _seen_through(strips: Sequence[Strip], width: int, height: int) -> str:
    kinds = {FATE_CLASS[strip.status] for strip in strips}
    parts = {kind: [(s.x, s.y, s.x + s.width, s.y + s.height) for s in strips if FATE_CLASS[s.status] == kind] for kind in sorted(kinds)}
    return "".join(raster.layer(kind, raster.mask(boxes, [1.0] * len(boxes), width, height)) for kind, boxes in parts.items())


def loss_text(trace: Trace, index: int, words: Words) -> str:
    """Return what the layer lost: pairs dropped, whose, how much they count, and tokens that lost every expert."""
    layer = trace.layers[index]
    dropped_TK = layer.decision.status_TC[:, : trace.top_k] == DROPPED
    count = int(dropped_TK.sum())
    if not count:
        return f"<p>{words.html('lost_none')}</p>"
    weight = float((layer.decision.token_weight_T * dropped_TK.sum(1)).sum() / count)
    visual = int(dropped_TK[trace.tokens.visual_T].sum())
    gone = layer.lost_every_expert()
    parts = [words.html("lost_dropped", n=count, w=num(weight)), words.html("lost_split", v=visual, t=count - visual)]
    return f"<p>{', '.join(parts)}<br>{words.html('lost_all_1' if gone == 1 else 'lost_all', n=gone)}</p>"


def _strips(trace: Trace, t: int, status_K: np.ndarray) -> list[Strip]:
    x0, y0, x1, y1 = (float(v) for v in trace.tokens.cell_T4[t])
    lost = [s for s in range(len(status_K)) if status_K[s] != KEPT]
    if len(status_K) > MAX_STRIPS:
        share = len(lost) / len(status_K)
        kind = DROPPED if any(status_K[s] == DROPPED for s in lost) else REROUTED
        return [Strip(t, kind, x0, y1 - share * (y1 - y0), x1 - x0, share * (y1 - y0))]
    width = (x1 - x0) / len(status_K)
    return [Strip(t, int(status_K[s]), x0 + s * width, y0, width, y1 - y0) for s in lost]


def _strip(strip: Strip) -> str:
    return f'<i class="{FATE_CLASS[strip.status]}" data-token="{strip.token}" style="{_place(*strip[2:])}"></i>'


def _box(trace: Trace, t: int) -> str:
    x0, y0, x1, y1 = (float(v) for v in trace.tokens.cell_T4[t])
    return _place(x0, y0, x1 - x0, y1 - y0)


def _place(x: float, y: float, width: float, height: float) -> str:
    return f"--x:{x:.5g};--y:{y:.5g};--cw:{width:.5g};--ch:{height:.5g}"


def _frames(shown: Shown, words: Words) -> str:
    """Return a slider over pictures or frames, of which page.js shows one at a time; nothing where they stand one above the other."""
    count = len(shown.pictures)
    if count <= MAX_STACKED:
        return ""
    slider = f'<input type="range" min="1" max="{count}" value="1" data-frames="{count}">'
    return f'<label class="frames"><span>{esc(words("frame_pick"))}</span>{slider}<output>1 / {count}</output></label>'


def _maps(shown: Shown, cells: Callable[[int], str], kind: str, label: str, mode: str = "") -> str:
    role = {"wmap": 'role="group" data-rove="grid"', "wmap many": 'role="group"'}.get(kind, 'role="img"')
    return "".join(
        f'<div class="map {kind}" data-mode="{mode}" data-image="{i}" style="aspect-ratio:{p.width}/{p.height};--photo:var(--picture-{i})"><span class="photo"></span>'
        f'<div class="cells" {role} aria-label="{esc(label)}">{cells(i)}</div></div>'
        for i, p in enumerate(shown.pictures)
    )


def _placed(trace: Trace) -> bool:
    """Whether it is known what part of its picture each visual token shows."""
    return bool(np.isfinite(trace.tokens.cell_T4[trace.tokens.visual_T & trace.tokens.valid_T]).all())


def _empty(words: Words, why: str = "empty_map") -> str:
    return f'<div class="map empty">{esc(words(why))}</div>'
