"""Where each visual token lies on its picture: rectangles of tokens in the order in which the vision tower gives them.

A picture is one view, or several tiles and a small view of the whole; each frame of a video is a picture. What a
family's batch does not say (the size of the picture before it was cut or padded) the caller adds as ``sizes``.
"""

from __future__ import annotations

from typing import Any, Iterable, Mapping, NamedTuple

import torch

from macs.model.anatomy import Anatomy
from macs.model.families import Family


class View(NamedTuple):
    """A row-major rectangle of visual tokens and the part of its picture that it shows."""

    rows: int
    columns: int
    box: tuple[float, float, float, float] | None = (0.0, 0.0, 1.0, 1.0)  # x0, y0, x1, y1 in pictures; None: not known
    at: tuple[int, int] = (0, 0)  # row and column of its first cell in the picture's grid
    starts: bool = True  # a picture of its own; False: the picture of the view before goes on
    source: int = 0  # which of the pictures, or of the frames after them, it shows; of several frames the first


Views = dict[int, list[View]]  # by token id, in batch order


def views_of(inputs: Mapping[str, Any], anatomy: Anatomy, processor: Any = None, sizes: Iterable[tuple[int, int]] = ()) -> Views:
    """Return the views of a processor's batch, empty where the family or the batch does not tell.

    ``sizes`` holds (width, height) in pixels of each picture and then of each frame of each video, as they were given to
    ``processor``.
    """
    family, sizes = anatomy.family, list(sizes)
    if family.grid == "merged":
        return _merged(inputs, anatomy, processor, sizes)
    if family.grid == "pooled":
        kinds = ((anatomy.image_token, "image_position_ids"), (anatomy.video_token, "video_position_ids"))
        found = {token: [_pooled(place_P2, anatomy.merge_size) for place_P2 in inputs[name]] for token, name in kinds if inputs.get(name) is not None}
        first = len(found.get(anatomy.image_token, ()))
        return {token: [v._replace(source=i + first * (token == anatomy.video_token)) for i, v in enumerate(views)] for token, views in found.items()}
    if family.grid == "tiled" and inputs.get("pixel_values") is not None and sizes and processor is not None:
        return {anatomy.image_token: _tiled(len(inputs["pixel_values"]), anatomy.tile_side, processor.image_processor, sizes)}
    return {}


def grids_of(grid_I3: Any, anatomy: Anatomy) -> list[View]:
    """Return the view of each picture, and of each frame of a video, from (frames, rows, columns) in patches [I, 3]."""
    side, together = anatomy.merge_size, anatomy.family.pools_time
    return [View(h // side, w // side, source=i) for i, (t, h, w) in enumerate(torch.as_tensor(grid_I3).tolist()) for _ in range(1 if together else t)]


def unplaced(views: list[View]) -> list[View]:
    """Return the same views with no claim about what part of the picture they show."""
    return [view._replace(box=None) for view in views]


def _merged(inputs: Mapping[str, Any], anatomy: Anatomy, processor: Any, sizes: list[tuple[int, int]]) -> Views:
    """Pictures and frames on grids of their own, each kind under its id."""
    family, found, before = anatomy.family, {}, 0
    for kind in ("image", "video"):
        grid_I3 = inputs.get(f"{kind}_grid_thw")
        if grid_I3 is not None and (kind == "image" or family.video):
            own = getattr(processor, f"{kind}_processor", None)
            views, frames_I = grids_of(grid_I3, anatomy), torch.as_tensor(grid_I3)[:, 0].tolist()
            if family.padded:
                views = _padded(views, frames_I, own, anatomy.merge_size, sizes[before : before + sum(frames_I)])
            found[kind] = [view._replace(source=before + shown) for view, shown in zip(views, _firsts(frames_I, family, kind, own))]
            before += len(frames_I)
    tokens = {"image": anatomy.image_token, "video": anatomy.image_token if family.frames_as_images else anatomy.video_token}
    return {tokens[kind]: views for kind, views in found.items() if tokens[kind] is not None}


def _firsts(frames_I: list[int], family: Family, kind: str, own: Any) -> list[int]:
    """Return the first picture, or frame, that each view of a kind shows."""
    if kind == "image":
        return list(range(len(frames_I)))
    if family.pools_time:
        return [sum(frames_I[:i]) for i in range(len(frames_I))]
    together = getattr(own, "temporal_patch_size", 1)  # frames that make one row of the grid
    return [i * together for i in range(sum(frames_I))]


def _padded(views: list[View], frames_I: list[int], own: Any, merge_size: int, sizes: list[tuple[int, int]]) -> list[View]:
    """Return the views without their padding where every picture's size is known, else with no place."""
    if own is None or len(sizes) != sum(frames_I):
        return unplaced(views)
    first_I = [sum(frames_I[:i]) for i in range(len(frames_I))]  # a video's frames are of one size
    return [_unpadded(view, own, merge_size, sizes[first]) for view, first in zip(views, first_I)]


def _unpadded(view: View, own: Any, merge_size: int, size: tuple[int, int]) -> View:
    """Return the view with its right and lower edge where the padding ends: beyond the picture's own; ``own`` is the processor of its kind."""
    from transformers.models.kimi_k25.image_processing_kimi_k25 import navit_resize

    side, (width, height) = own.patch_size * merge_size, size
    limit = own.size["max_height"] if isinstance(own.size, Mapping) else own.size.max_height
    (shown_height, shown_width), _ = navit_resize(height, width, own.patch_size, merge_size, own.max_patches, limit)
    return view._replace(box=(0.0, 0.0, view.columns * side / shown_width, view.rows * side / shown_height))


def _pooled(place_P2: torch.Tensor, side: int) -> View:
    """Return the view of patches at (x, y) [P, 2], -1 where there is none, of which squares of ``side`` make one token."""
    columns, rows = (torch.as_tensor(place_P2).amax(0) + 1).tolist()
    return View(rows // side, columns // side)


def _tiled(count: int, side: int, images: Any, sizes: list[tuple[int, int]]) -> list[View]:
    """Return the tiles of each picture, row by row, and after several the small view of the whole as a picture of its own."""
    from transformers.models.got_ocr2.image_processing_got_ocr2 import get_optimal_tiled_canvas

    tile = (images.size["height"], images.size["width"])
    canvases = [get_optimal_tiled_canvas((h, w), tile, images.min_patches, images.max_patches) for w, h in sizes]
    cut = sum(columns * rows + (columns * rows > 1) for columns, rows in canvases)
    if count == len(sizes) != cut:  # the processor was told not to cut
        canvases = [(1, 1)] * count
    found = []
    for picture, (columns, rows) in enumerate(canvases):
        for row in range(rows):
            for column in range(columns):
                box = (column / columns, row / rows, (column + 1) / columns, (row + 1) / rows)
                found.append(View(side, side, box, (row * side, column * side), row == column == 0, picture))
        if columns * rows > 1:
            found.append(View(side, side, source=picture))
    return found
