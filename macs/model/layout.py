"""The tokens of one forward batch: which are visual, which are padding, of which image, and at which place of its grid.

Spans come from the token ids and the processor's views, never from a template. Rows are the flattened batch [B, S].
"""

from __future__ import annotations

from typing import Any, Mapping

import numpy as np

from macs.model.anatomy import Anatomy
from macs.model.views import View
from macs.trace import Tokens


def lay_out(ids_BS: np.ndarray, valid_BS: np.ndarray, anatomy: Anatomy, views: Mapping[int, list[View]]) -> Tokens:
    """Return the tokens of a batch with empty texts; ``views`` holds those of each visual token id, in batch order.

    Without views of an id, each unbroken run of it is one image whose cells are unknown (NaN). A video's frames
    count as images; a sequence that ``generate`` repeats, as for beams, shows the same image each time. Raises
    ValueError if the views do not add up to the visual tokens.
    """
    views = {token: [View(*view) for view in of_token] for token, of_token in views.items()}
    times = _repeats(ids_BS, views)
    if times > 1:
        return _repeated(lay_out(ids_BS[::times], valid_BS[::times], anatomy, views), ids_BS, times)
    id_T, valid_T = ids_BS.reshape(-1).astype(np.int64), valid_BS.reshape(-1)
    visual_T = np.isin(id_T, anatomy.visual_tokens) & valid_T
    image_T = np.full(len(id_T), -1, np.int64)
    cell_T4 = np.full((len(id_T), 4), np.nan, np.float32)
    position_T2 = np.full((len(id_T), 2), -1, np.int64)
    left = {token: list(of_token) for token, of_token in views.items()}
    image = -1
    for start, stop in _runs(np.where(visual_T, id_T, -1).reshape(ids_BS.shape)):
        while start < stop:
            view = _next_view(left, int(id_T[start]), stop - start)
            end = stop if view is None else start + view.rows * view.columns
            image += view is None or view.starts
            image_T[start:end] = image
            if view is not None:
                position_T2[start:end], cell_T4[start:end] = _cells(view)
            start = end
    if any(left.values()):
        raise ValueError(f"The inputs hold {sum(map(len, left.values()))} more images than the model was given; pass the same batch to both.")
    return Tokens(
        id_T=id_T,
        text_T=("",) * len(id_T),
        visual_T=visual_T,
        valid_T=valid_T,
        image_T=image_T,
        sequence_T=np.repeat(np.arange(ids_BS.shape[0]), ids_BS.shape[1]),
        cell_T4=cell_T4,
        position_T2=position_T2,
    )


def _repeats(ids_BS: np.ndarray, views: Mapping[int, list[View]]) -> int:
    """Return how many times in a row each sequence of the processor's batch stands here, from what the views add up to."""
    cells = sum(view.rows * view.columns for of_token in views.values() for view in of_token)
    times, rest = divmod(int(np.isin(ids_BS, list(views)).sum()), cells) if cells else (1, 0)
    if rest or times < 2 or len(ids_BS) % times:
        return 1
    return times if (ids_BS == ids_BS[::times].repeat(times, 0)).all() else 1


def _repeated(once: Tokens, ids_BS: np.ndarray, times: int) -> Tokens:
    def repeat(value: np.ndarray) -> np.ndarray:
        return value.reshape(-1, ids_BS.shape[1], *value.shape[1:]).repeat(times, 0).reshape(-1, *value.shape[1:])

    arrays = {name: repeat(getattr(once, name)) for name in ("id_T", "visual_T", "valid_T", "image_T", "cell_T4", "position_T2")}
    sequence_T = np.repeat(np.arange(len(ids_BS)), ids_BS.shape[1])
    return Tokens(**arrays, text_T=("",) * ids_BS.size, sequence_T=sequence_T)


def _runs(kind_BS: np.ndarray) -> list[tuple[int, int]]:
    """Return (start, stop) rows of each unbroken run of one id >= 0; a run ends with its sequence."""
    fenced = np.pad(kind_BS, ((0, 0), (1, 0)), constant_values=-2)  # unlike any id: each sequence starts anew
    starts = np.flatnonzero(fenced[:, 1:] != fenced[:, :-1])
    stops = np.append(starts[1:], kind_BS.size)
    flat = kind_BS.reshape(-1)
    return [(int(a), int(b)) for a, b in zip(starts, stops) if flat[a] >= 0]


def _next_view(left: dict[int, list[View]], token: int, room: int) -> View | None:
    if token not in left:
        return None
    if not left[token] or left[token][0].rows * left[token][0].columns > room:
        raise ValueError("The inputs' image grids do not add up to the visual tokens; pass the batch that the model is given.")
    return left[token].pop(0)


def _cells(view: View) -> tuple[np.ndarray, np.ndarray]:
    """Return (row, column) and (x0, y0, x1, y1) of a row-major view; cells end where their picture does."""
    row, column = np.divmod(np.arange(view.rows * view.columns), view.columns)
    place = np.stack([row + view.at[0], column + view.at[1]], 1)
    if view.box is None:
        return place, np.full((len(place), 4), np.nan, np.float32)
    corners = np.stack([column / view.columns, row / view.rows, (column + 1) / view.columns, (row + 1) / view.rows], 1)
    x0, y0, x1, y1 = view.box
    cell = np.array([x0, y0, x0, y0]) + corners * np.array([x1 - x0, y1 - y0, x1 - x0, y1 - y0])
    return place, cell.clip(0, 1).astype(np.float32)


def token_texts(id_T: np.ndarray, tokenizer: Any) -> tuple[str, ...]:
    """Return what each token reads as; bytes that are no character by themselves as <0xNN>."""
    texts = {int(token): _text(int(token), tokenizer) for token in np.unique(id_T)}
    return tuple(texts[int(token)] for token in id_T)


def _text(token: int, tokenizer: Any) -> str:
    text = tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False)
    if "\ufffd" not in text:
        return text
    alphabet = {character: byte for byte, character in _byte_alphabet().items()}
    piece = tokenizer.convert_ids_to_tokens(token)
    if piece and all(character in alphabet for character in piece):
        return "".join(f"<0x{alphabet[character]:02X}>" for character in piece)
    return piece or text


def _byte_alphabet() -> dict[int, str]:
    """Return the printable character that byte-level tokenizers write for each byte."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return bytes_to_unicode()
