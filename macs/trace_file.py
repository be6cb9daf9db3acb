"""One compressed file per trace: arrays as NPZ, the rest as JSON inside it; no pickle is written or read.

A file may come from anybody: its sizes are checked before anything is unpacked, and its arrays before a view counts with them.
"""

from __future__ import annotations

import json
import math
import zipfile
from dataclasses import fields
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy

from macs.config import Policy, policy_from_dict
from macs.core import DROPPED, EXPANDED, KEPT, PADDING, REROUTED, UNUSED, Assignment
from macs.trace import LayerTrace, Tokens, Trace

FORMAT = "macs-trace"
VERSION = 1
MAX_EXPERTS = 65536  # of a layer
MAX_BYTES = 2 * 1024**3  # of arrays once unpacked: a 48-layer, 128-expert, 4k-token trace is about 0.3 GB
MAX_IMAGES = 16  # pictures in a trace; a page decodes them all
_PLAIN = {"ep_size": int, "router_normalizes": bool, "prompt": str, "answer": str, "calibrated": bool}
_HEADER = _PLAIN | {"policy": dict, "text": list, "layers": list, "images": int, "seconds": dict, "about": dict}
_LAYER_ARRAYS = ("scores_TN", "expert_TK", "weight_TK", "entropy_T", "modality_N")
_DECISION_ARRAYS = tuple(f.name for f in fields(Assignment) if f.name != "visual_ratio")
_TOKEN_ARRAYS = tuple(f.name for f in fields(Tokens) if f.name != "text_T")
_BOOLS = ("visual_T", "valid_T")
_INTEGERS = ("id_T", "image_T", "sequence_T", "position_T2", "expert_TK", "expert_TC", "status_TC", "modality_N", "tokens_before_N", "tokens_after_N")
_KINDS = {"b": (np.bool_,), "i": (np.int8, np.int16, np.int32, np.int64, np.uint8), "f": (np.float16, np.float32, np.float64), "u": (np.uint8,)}


def save_trace(trace: Trace, target: str | Path | BinaryIO) -> None:
    """Write ``trace`` as one compressed file; raises OSError if it cannot be written."""
    header = {name: getattr(trace, name) for name in (*_PLAIN, "kl")} | {
        "format": FORMAT,
        "version": VERSION,
        "policy": trace.policy.to_dict(),
        "text": trace.tokens.text_T,
        "layers": [{"layer": x.layer, "visual_ratio": x.decision.visual_ratio, "seconds": sorted(x.seconds)} for x in trace.layers],
        "images": len(trace.images),
        "seconds": dict(trace.seconds),
        "about": dict(trace.about),
        "lacks": trace.lacks,
        "experts": trace.num_experts,
    }
    arrays = {"header": np.frombuffer(json.dumps(header, ensure_ascii=True).encode(), np.uint8)}
    arrays |= {f"tokens.{name}": getattr(trace.tokens, name) for name in _TOKEN_ARRAYS}
    arrays |= {"entropy_first_T": trace.entropy_first_T, "entropy_embedding_T": trace.entropy_embedding_T}
    arrays |= {f"image{i}": np.frombuffer(data, np.uint8) for i, data in enumerate(trace.images)}
    for i, layer in enumerate(trace.layers):
        arrays |= {f"layer{i}.{name}": getattr(layer, name) for name in _LAYER_ARRAYS if trace.scored or name != "scores_TN"}
        arrays |= {f"layer{i}.decision.{name}": getattr(layer.decision, name) for name in _DECISION_ARRAYS}
        arrays |= {f"layer{i}.seconds.{name}": np.asarray(value) for name, value in layer.seconds.items()}
    np.savez_compressed(target, **arrays)


def load_trace(source: str | Path | BinaryIO, *, max_bytes: int = MAX_BYTES) -> Trace:
    """Read a trace; raises ValueError with one sentence if the file is none, is damaged, lies, or unpacks to too much."""
    try:
        with zipfile.ZipFile(source) as archive:
            size = sum(item.file_size for item in archive.infolist())
            if size > max_bytes:
                raise Refused(f"This trace unpacks to {size:,} bytes; at most {max_bytes:,} are read.")
            trace = _build(_Arrays(archive))
    except FileNotFoundError:
        raise ValueError(f"There is no trace file {str(source)!r}.") from None
    except Refused:
        raise
    except Exception as error:  # zipfile, zlib, json and numpy answer damage with almost any of them
        raise ValueError(f"This file is not a readable trace ({type(error).__name__}); save one with the workbench.") from error
    _check(trace)
    return trace


class Refused(ValueError):
    """A trace that can be read and must not be: says why in one sentence."""


class _Arrays:
    """The arrays of an open archive. A name's last part is its axes: an axis of one letter has one length in all of them."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._lengths: dict[str, int] = {str(n): n for n in range(10)}

    def get(self, key: str, kind: str = "") -> np.ndarray:
        """Return the array ``key``; raises ValueError if its header does not say what belongs there, before it is unpacked."""
        name = key.rpartition(".")[2]
        axes = "" if kind else name.rpartition("_")[2]
        allowed = _KINDS[kind or ("b" if name in _BOOLS else "i" if name in _INTEGERS else "f")]
        with self._archive.open(f"{key}.npy") as member:
            shape, fortran, dtype = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[npy.read_magic(member)](member)
            count = math.prod(shape) * dtype.itemsize
            fits = dtype.type in allowed and dtype.isnative and len(shape) == (len(axes) or 1)
            lengths = self._lengths if axes else {}
            fits = fits and all(n >= 0 and lengths.setdefault(axis, n) == n for n, axis in zip(shape, axes or "?"))
            if not fits or count > self._archive.getinfo(f"{key}.npy").file_size:
                raise _misfit()
            data = bytearray(member.read(count))
        return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")

    def unscored(self, experts: int) -> np.ndarray:
        """Return scores [T, N] of NaN that take no memory."""
        self._lengths["N"] = experts
        return np.broadcast_to(np.float32(np.nan), (self._lengths["T"], experts))


def _build(arrays: _Arrays) -> Trace:
    header = json.loads(arrays.get("header", "u").tobytes())
    header = json.loads(json.dumps(header, ensure_ascii=False).encode("utf-8", "replace"))  # a lone surrogate is no character
    if header.get("format") != FORMAT or header.get("version") != VERSION:
        raise Refused(f"This file is not a {FORMAT} of version {VERSION}; save it again with this version.")
    lacks = tuple(header.setdefault("lacks", []))  # traces of the first releases lack nothing and do not say so
    _check_header(header)
    tokens = Tokens(text_T=tuple(header["text"]), **{name: arrays.get(f"tokens.{name}") for name in _TOKEN_ARRAYS})
    unscored = arrays.unscored(header["experts"]) if "scores" in lacks else None
    return Trace(
        **{name: header[name] for name in (*_PLAIN, "kl")},
        policy=_policy(header["policy"]),
        tokens=tokens,
        layers=tuple(_build_layer(i, entry, arrays, unscored) for i, entry in enumerate(header["layers"])),
        entropy_first_T=arrays.get("entropy_first_T"),
        entropy_embedding_T=arrays.get("entropy_embedding_T"),
        images=tuple(arrays.get(f"image{i}", "u").tobytes() for i in range(header["images"])),
        seconds=header["seconds"],
        about=header["about"],
        lacks=lacks,
    )


def _build_layer(i: int, entry: dict[str, Any], arrays: _Arrays, unscored: np.ndarray | None) -> LayerTrace:
    decision = {name: arrays.get(f"layer{i}.decision.{name}") for name in _DECISION_ARRAYS}
    scores = {} if unscored is None else {"scores_TN": unscored}
    return LayerTrace(
        layer=entry["layer"],
        **scores,
        **{name: arrays.get(f"layer{i}.{name}") for name in _LAYER_ARRAYS if name not in scores},
        decision=Assignment(visual_ratio=float(entry["visual_ratio"]), **decision),
        seconds={name: arrays.get(f"layer{i}.seconds.{name}", "f") for name in entry["seconds"]},
    )


def _policy(values: dict[str, Any]) -> Policy:
    try:
        return policy_from_dict(values)
    except ValueError as error:
        said = str(error)  # which quotes what the file holds
        raise Refused(f"This trace's policy is none: {said}" if len(said) < 200 else "This trace's policy is none; save it again with the workbench.") from None


def _misfit() -> Refused:
    return Refused("This trace's arrays do not fit together; save it again with the workbench.")


def _is_number(value: Any, low: float = -math.inf, high: float = math.inf) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and low <= value <= high


def _check_header(header: dict[str, Any]) -> None:
    """Refuse values of another kind than ``save_trace`` writes."""
    about, fits = header["about"], all(type(header[name]) is kind for name, kind in _HEADER.items())
    fits = fits and all(type(text) is str for text in header["text"]) and all(map(_is_number, header["seconds"].values()))
    fits = fits and (header["kl"] is None or _is_number(header["kl"])) and header["ep_size"] >= 1 and 0 <= header["images"] <= MAX_IMAGES
    fits = fits and type(header["lacks"]) is list and (not header["lacks"] or "scores" in header["lacks"])
    unknown = bool(header["lacks"])
    fits = fits and all(type(name) is str for name in header["lacks"]) and (not unknown or type(header["experts"]) is int)
    if fits and unknown and not 1 <= header["experts"] <= MAX_EXPERTS:
        raise Refused(f"This trace names {header['experts']!r} experts; at most {MAX_EXPERTS:,} are read.")
    fits = fits and type(about.setdefault("model", "?")) is str and all(type(n) is str for n in about.get("notices", []))
    for entry in header["layers"] if fits else ():
        fits = fits and type(entry["layer"]) is int and (unknown or _is_number(entry["visual_ratio"], 0, 1))
        fits = fits and all(type(name) is str for name in entry["seconds"])
    if not fits:
        raise Refused("This trace's header holds values of the wrong kind; save it again with the workbench.")


def _check(trace: Trace) -> None:
    """Refuse numbers that contradict one another, before a view indexes with them."""
    tokens, count = trace.tokens, len(trace.tokens)
    cells_T4 = tokens.cell_T4[np.isfinite(tokens.cell_T4).any(1)]
    images = np.unique(tokens.image_T[tokens.visual_T])
    fits = bool(trace.layers) and len(tokens.text_T) == count and bool(tokens.valid_T.any())
    fits = fits and ((tokens.image_T >= 0) == tokens.visual_T).all() and np.array_equal(images, np.arange(len(images)))
    fits = fits and (np.abs(cells_T4) <= 10).all() and (cells_T4[:, :2] < cells_T4[:, 2:]).all()
    fits = fits and (tokens.position_T2 >= -1).all() and (tokens.position_T2 < count).all()
    entropies = (trace.entropy_first_T, trace.entropy_embedding_T, *(layer.entropy_T for layer in trace.layers))
    fits = fits and not any(np.isinf(entropy_T).any() for entropy_T in entropies)
    if not (fits and all(_fits(layer, trace) for layer in trace.layers)):
        raise _misfit()


def _fits(layer: LayerTrace, trace: Trace) -> bool:
    """Return whether a layer's decision can be one on its scores: every pair is there once, and every count is its pairs'."""
    decision, valid_T = layer.decision, trace.tokens.valid_T
    experts, top_k = layer.num_experts, layer.expert_TK.shape[1]
    status_TC, expert_TC = decision.status_TC, decision.expert_TC
    if not (1 <= top_k <= min(experts, status_TC.shape[1]) and experts % trace.ep_size == 0 and np.isin(layer.modality_N, (-1, 0, 1)).all()):
        return False
    if not ((layer.expert_TK >= 0) & (layer.expert_TK < experts)).all():
        return False
    executed_TC = np.isin(status_TC, (KEPT, REROUTED, EXPANDED))
    return bool(
        (status_TC[~valid_T] == PADDING).all()
        and np.isin(status_TC[valid_T, :top_k], (KEPT, REROUTED, DROPPED)).all()
        and np.isin(status_TC[valid_T, top_k:], (EXPANDED, UNUSED)).all()
        and ((expert_TC >= 0) & (expert_TC <= experts) & ((expert_TC < experts) == executed_TC)).all()
        and (expert_TC[:, :top_k] == layer.expert_TK)[status_TC[:, :top_k] == KEPT].all()
        and np.array_equal(decision.tokens_before_N, np.bincount(layer.expert_TK[valid_T].ravel(), minlength=experts))
        and np.array_equal(decision.tokens_after_N, np.bincount(expert_TC[executed_TC], minlength=experts))
        and _sound(decision.capacity_N)
        and all(len(x) in (1, trace.ep_size) and np.isfinite(x).all() for x in layer.seconds.values())
        and (_scores_fit(layer, valid_T) if trace.scored else (status_TC[valid_T] == KEPT).all())
    )


def _scores_fit(layer: LayerTrace, valid_T: np.ndarray) -> bool:
    """Return whether what follows from router scores can; a trace without them holds NaN there, and every pair is kept."""
    decision = layer.decision
    return bool(
        all(_sound(x) for x in (layer.scores_TN[valid_T], decision.effective_before_N, decision.effective_after_N))
        and np.isfinite(layer.weight_TK[valid_T]).all()
        and np.isfinite(decision.weight_TC).all()
        and ((decision.token_weight_T >= 0) & (decision.token_weight_T <= 1)).all()
    )


def _sound(values: np.ndarray) -> bool:
    return bool(((values >= 0) & np.isfinite(values)).all())
