"""One compressed file per trace: arrays as NPZ, the rest as JSON inside it; no pickle is written or read."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import fields
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from macs.config import policy_from_dict
from macs.core import Assignment
from macs.trace import LayerTrace, Tokens, Trace

FORMAT = "macs-trace"
VERSION = 1
MAX_EXPERTS = 65536  # of a layer
MAX_BYTES = 2 * 1024**3  # of arrays once unpacked: a 48-layer, 128-expert, 4k-token trace is about 0.3 GB
_PLAIN = ("ep_size", "router_normalizes", "prompt", "answer", "kl", "calibrated")
_LAYER_ARRAYS = ("scores_TN", "expert_TK", "weight_TK", "entropy_T", "modality_N")
_DECISION_ARRAYS = tuple(f.name for f in fields(Assignment) if f.name != "visual_ratio")
_TOKEN_ARRAYS = tuple(f.name for f in fields(Tokens) if f.name != "text_T")


def save_trace(trace: Trace, target: str | Path | BinaryIO) -> None:
    """Write ``trace`` as one compressed file; raises OSError if it cannot be written."""
    header = {name: getattr(trace, name) for name in _PLAIN} | {
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


def load_trace(source: str | Path | BinaryIO) -> Trace:
    """Read a trace; raises ValueError with one sentence if the file is none, is damaged or is too large."""
    try:
        data = Path(source).read_bytes() if isinstance(source, (str, Path)) else source.read()
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            size = sum(item.file_size for item in archive.infolist())
        if size > MAX_BYTES:
            raise ValueError(f"This trace unpacks to {size:,} bytes; at most {MAX_BYTES:,} are read.")
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return _build(json.loads(arrays["header"].tobytes()), arrays)
    except FileNotFoundError:
        raise ValueError(f"There is no trace file {str(source)!r}.") from None
    except (zipfile.BadZipFile, KeyError, TypeError, IndexError, UnicodeDecodeError, json.JSONDecodeError, EOFError, OSError) as error:
        raise ValueError(f"This file is not a readable trace ({type(error).__name__}); save one with the workbench.") from None


def _build(header: dict[str, Any], arrays: Any) -> Trace:
    if header.get("format") != FORMAT or header.get("version") != VERSION:
        raise ValueError(f"This file is not a {FORMAT} of version {VERSION}; save it again with this version.")
    tokens = Tokens(text_T=tuple(header["text"]), **{name: arrays[f"tokens.{name}"] for name in _TOKEN_ARRAYS})
    lacks = tuple(map(str, header.get("lacks", ())))  # traces of the first releases lack nothing and do not say so
    unscored = _no_scores(tokens, header["experts"]) if "scores" in lacks else None
    layers = tuple(_build_layer(i, entry, arrays, unscored) for i, entry in enumerate(header["layers"]))
    trace = Trace(
        **{name: header[name] for name in _PLAIN},
        policy=policy_from_dict(header["policy"]),
        tokens=tokens,
        layers=layers,
        entropy_first_T=arrays["entropy_first_T"],
        entropy_embedding_T=arrays["entropy_embedding_T"],
        images=tuple(arrays[f"image{i}"].tobytes() for i in range(header["images"])),
        seconds=header["seconds"],
        about=header["about"],
        lacks=lacks,
    )
    _check(trace)
    return trace


def _build_layer(i: int, entry: dict[str, Any], arrays: Any, unscored: np.ndarray | None) -> LayerTrace:
    decision = {name: arrays[f"layer{i}.decision.{name}"] for name in _DECISION_ARRAYS}
    scores = {} if unscored is None else {"scores_TN": unscored}
    return LayerTrace(
        layer=int(entry["layer"]),
        **scores,
        **{name: arrays[f"layer{i}.{name}"] for name in _LAYER_ARRAYS if name not in scores},
        decision=Assignment(visual_ratio=float(entry["visual_ratio"]), **decision),
        seconds={name: arrays[f"layer{i}.seconds.{name}"] for name in entry["seconds"]},
    )


def _no_scores(tokens: Tokens, experts: Any) -> np.ndarray:
    """Return [T, N] of NaN that takes no memory; raises ValueError if N is no number of experts."""
    if not isinstance(experts, int) or not 1 <= experts <= MAX_EXPERTS:
        raise ValueError(f"This trace names {experts!r} experts; at most {MAX_EXPERTS:,} are read.")
    return np.broadcast_to(np.float32(np.nan), (len(tokens), experts))


def _check(trace: Trace) -> None:
    """Refuse arrays that do not fit together, before a view indexes with them."""
    count = len(trace.tokens)
    per_token = [getattr(trace.tokens, name) for name in _TOKEN_ARRAYS] + [trace.entropy_first_T, trace.entropy_embedding_T]
    fits = trace.layers and len(trace.tokens.text_T) == count and all(len(x) == count for x in per_token)
    for layer in trace.layers:
        experts = layer.scores_TN.shape[-1]
        decision = layer.decision
        slots = decision.expert_TC.shape
        fits = fits and layer.scores_TN.shape == (count, experts) and layer.expert_TK.shape == layer.weight_TK.shape
        fits = fits and decision.status_TC.shape == decision.weight_TC.shape == slots and slots[0] == count
        fits = fits and len(decision.tokens_after_N) == len(decision.capacity_N) == len(layer.modality_N) == experts
        fits = fits and experts % trace.ep_size == 0
        fits = fits and (layer.expert_TK >= 0).all() and (layer.expert_TK < experts).all()
        fits = fits and (decision.expert_TC >= 0).all() and (decision.expert_TC <= experts).all()
    if not fits:
        raise ValueError("This trace's arrays do not fit together; save it again with the workbench.")
