"""Reads routing records of serving engines: what vLLM and SGLang return with an answer, or dump. No pickle is run.

Three layouts, all of them expert ids alone:

* vLLM, ``--enable-return-routed-experts``: ``choices[i].routed_experts`` is a base64 .npy [tokens - 1, layers, K] from the
  first prompt token on; release 0.21 has nested lists of the generated tokens there, and ``prompt_routed_experts``.
* SGLang, ``return_routed_experts``: ``meta_info.routed_experts``, or ``choices[i].sgl_ext.routed_experts``, is base64 of
  int32 with the same axes, whose sizes it does not say.
* SGLang's expert-distribution recorder, mode per_token: a .pt of forward passes with ``topk_ids_of_layer`` [layers, T, K],
  physical ids, -1 where nothing was written.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import math
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

MAX_BYTES = 256 * 1024**2  # of the file, and of a dump once unpacked
NO_RECORD = "This file is no routing record of vLLM or SGLang; give the JSON response, or the recorder's .pt file."


@dataclass(frozen=True)
class Record:
    """The prompt's routing as an engine recorded it; ids are not checked yet."""

    source: str  # "vLLM" or "SGLang"
    expert_TLK: np.ndarray  # int64; -1 where nothing was recorded
    token_T: np.ndarray | None  # int64 vocabulary ids, where the record has them
    experts: int | None  # of a layer, where the record says it
    model: str = ""
    answer: str = ""
    notices: tuple[str, ...] = ()


def read_record(path: str | Path, *, layers: int | None = None, top_k: int | None = None, choice: int = 0, forward_pass: int | None = None) -> Record:
    """Return the record in a file; raises ValueError with one sentence if it is none, is damaged or is too large.

    ``layers`` and ``top_k`` are needed where the record does not say its shape, ``choice`` is the answer of several to
    read, ``forward_pass`` the pass of a dump (default: the one with most tokens).
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError):  # ValueError: a name that no file can have
        raise ValueError(f"There is no file {Path(path).name!r}; give a response or a dump.") from None
    if len(data) > MAX_BYTES:
        raise ValueError(f"This file has more than {MAX_BYTES:,} bytes; record fewer tokens.")
    if data.startswith(b"PK"):
        return _from_dump(data, forward_pass)
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError(NO_RECORD) from None
    return _from_response(document, layers, top_k, choice)


def _from_response(document: Any, layers: int | None, top_k: int | None, choice: int) -> Record:
    answers = document if isinstance(document, list) else _get(document, "choices") or [document]
    if not isinstance(answers, list):
        raise ValueError(NO_RECORD)
    if not 0 <= choice < len(answers):
        raise ValueError(f"choice is {choice}, but the response has {len(answers)} answers; count from 0.")
    chosen = answers[choice]
    places = (("routed_experts",), ("sgl_ext", "routed_experts"), ("meta_info", "routed_experts"))
    found, encoded = next(((place, value) for place in places if (value := _get(chosen, *place)) is not None), (None, None))
    split = _get(document, "prompt_routed_experts")
    if split is None and encoded is None:
        raise ValueError("This response holds no routed_experts; start the server with --enable-return-routed-experts and, for SGLang, ask with return_routed_experts.")
    expert_TLK = _ids(encoded if split is None else split, layers, top_k)
    if split is None:
        expert_TLK = _prompt_rows(expert_TLK, document, chosen, alone=len(answers) == 1)
    message = _get(chosen, "message", "content")
    return Record(
        source="vLLM" if found in (None, places[0]) else "SGLang",
        expert_TLK=expert_TLK,
        token_T=_token_ids(document, chosen, len(expert_TLK)),
        experts=None,
        model=str(_get(document, "model") or ""),
        answer=str(message or _get(chosen, "text") or "").strip(),
    )


def _get(value: Any, *names: str) -> Any:
    """Return what lies under these names, one inside the other; None where there is nothing."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _ids(value: Any, layers: int | None, top_k: int | None) -> np.ndarray:
    """Return ids [T, L, K] int64 from base64 or nested lists; raises ValueError with one sentence."""
    if isinstance(value, str):
        try:
            data = base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            raise ValueError("routed_experts is not valid base64; save the response as the server sent it.") from None
        ids = _npy(data) if data.startswith(b"\x93NUMPY") else _flat(data, layers, top_k)
    else:
        try:
            ids = np.asarray(value)
        except (ValueError, RecursionError, OverflowError):
            raise ValueError("routed_experts is a list of unequal lists; it must be [tokens, layers, slots].") from None
    if ids.dtype.kind not in "iu":
        raise ValueError(f"routed_experts holds {ids.dtype.name} values; expert ids are whole numbers.")
    if ids.ndim != 3 or not ids.size:
        raise ValueError(f"routed_experts has the shape {list(ids.shape)}; it must be [tokens, layers, slots], none of them 0.")
    return ids.astype(np.int64)


def _npy(data: bytes) -> np.ndarray:
    """Return the array of a .npy; its header must agree with its length before anything of that size is made."""
    buffer = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(buffer)
        header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, fortran, dtype = header(buffer)
    except Exception:  # numpy's reader answers damage with almost any of them
        raise ValueError("routed_experts is a damaged .npy; save the response as the server sent it.") from None
    rest = data[buffer.tell() :]
    if dtype.hasobject or min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != len(rest):
        raise ValueError(f"routed_experts is a .npy of shape {list(shape)} and type {dtype}, but {len(rest)} bytes follow; it is damaged.")
    return np.frombuffer(rest, dtype).reshape(shape, order="F" if fortran else "C")


def _flat(data: bytes, layers: int | None, top_k: int | None) -> np.ndarray:
    if not layers or not top_k:
        raise ValueError("This record does not say its shape; give --layers (all decoder layers) and --top-k.")
    if not data or len(data) % (4 * layers * top_k):
        raise ValueError(f"routed_experts has {len(data)} bytes, which is no whole number of tokens of {layers} layers × {top_k} int32 ids; check --layers and --top-k.")
    return np.frombuffer(data, "<i4").reshape(-1, layers, top_k)


def _prompt_rows(expert_TLK: np.ndarray, document: Any, chosen: Any, *, alone: bool) -> np.ndarray:
    """Return the rows of the prompt, the batch of the prefill; the generated tokens follow one at a time."""
    said = [_get(document, "usage"), _get(chosen, "meta_info")]
    prompt, generated = (next((n for part in said if (n := _get(part, f"{kind}_tokens")) is not None), None) for kind in ("prompt", "completion"))
    if not _count(prompt) or not prompt:
        raise ValueError(f"The response says that the prompt has {prompt!r} tokens; keep its usage or meta_info, which hold prompt_tokens.")
    rows = prompt + generated - 1 if alone and _count(generated) else prompt
    if len(expert_TLK) < rows:
        raise ValueError(f"routed_experts has {len(expert_TLK)} tokens and the response {rows}; ask for them from the first prompt token on.")
    return expert_TLK[:prompt]


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _token_ids(document: Any, chosen: Any, count: int) -> np.ndarray | None:
    ids = _get(document, "prompt_token_ids") or _get(chosen, "prompt_token_ids")
    fits = isinstance(ids, list) and len(ids) == count and all(_count(i) and i < 2**31 for i in ids)
    return np.array(ids, np.int64) if fits else None


def _from_dump(data: bytes, forward_pass: int | None) -> Record:
    """Return one forward pass of the recorder's dump, its physical experts read as logical ones."""
    passes, map_LP = _checked(_unpacked(data))
    numbers = [p.get("forward_pass_id", i) for i, p in enumerate(passes)]
    if forward_pass is not None and forward_pass not in numbers:
        raise ValueError(f"pass is {forward_pass}, which this dump does not hold; it has {numbers[0]} to {numbers[-1]}.")
    candidates = [(n, p) for n, p in zip(numbers, passes) if forward_pass in (None, n)]
    number, chosen = max(candidates, key=lambda item: item[1]["topk_ids_of_layer"].shape[1])
    ids_LTK = chosen["topk_ids_of_layer"].numpy().astype(np.int64)
    if not ids_LTK.size:
        raise ValueError(f"Forward pass {number} holds no tokens; choose another one with --pass.")
    physical = map_LP.shape[1]
    if ids_LTK.max() >= physical or ids_LTK.min() < -1:
        raise ValueError(f"topk_ids_of_layer holds ids from {ids_LTK.min()} to {ids_LTK.max()}, but there are {physical} experts; the dump is damaged.")
    logical_LTK = np.stack([map_P[ids_TK] for map_P, ids_TK in zip(map_LP, ids_LTK)])
    expert_TLK = np.where(ids_LTK < 0, -1, logical_LTK).transpose(1, 0, 2)
    notices = [f"Forward pass {number} of the {len(passes)} that were recorded."]
    if not (map_LP == np.arange(physical)).all():
        notices.append("The server had placed experts otherwise or more than once; ranks here hold them by their ids.")
    token_T = _token_ids({"prompt_token_ids": chosen.get("input_ids")}, {}, len(expert_TLK))
    return Record("SGLang", expert_TLK, token_T, int(map_LP.max()) + 1, notices=tuple(notices))


def _unpacked(data: bytes) -> Any:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            size = sum(item.file_size for item in archive.infolist())
        content = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True) if size <= MAX_BYTES else None
    except Exception:  # torch's reader answers damage with almost any of them
        raise ValueError(NO_RECORD) from None
    if size > MAX_BYTES:
        raise ValueError(f"This dump unpacks to {size:,} bytes; at most {MAX_BYTES:,} are read.")
    return content


def _checked(content: Any) -> tuple[list[dict[str, Any]], np.ndarray]:
    """Return the passes of a dump and the map [L, P] from physical to logical experts; raises ValueError with one sentence."""
    passes = _get(content, "records")
    if not isinstance(passes, list) or not passes or not all(_get(p, "topk_ids_of_layer") is not None for p in passes):
        raise ValueError("This dump does not hold each token's experts; record with --expert-distribution-recorder-mode per_token.")
    placed = _get(content, "last_physical_to_logical_map")
    fits = _whole(placed, 2) and placed.numel() and placed.min() >= 0
    if not fits or not all(_whole(p["topk_ids_of_layer"], 3) and len(p["topk_ids_of_layer"]) == len(placed) for p in passes):
        raise ValueError("topk_ids_of_layer and last_physical_to_logical_map do not fit together; the dump is damaged.")
    return passes, placed.numpy().astype(np.int64)


def _whole(value: Any, axes: int) -> bool:
    """Whether this is a dense tensor of whole numbers with so many axes."""
    dense = isinstance(value, torch.Tensor) and value.layout == torch.strided
    return dense and value.ndim == axes and value.dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
