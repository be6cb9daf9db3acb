"""Where each visual token lies on its picture: rectangles of tokens in the order in which the vision tower gives them.

A picture is one view, or several tiles and a small view of the whole; each frame of a video is a picture. What a
family's batch does not say (the size of the picture before it was cut or padded) the caller adds as ``sizes``.
"""

from __future__ import annotations

from typing import Any, Iterable, Mapping, NamedTuple

import torch

from macs.model.anatomy import Anatomy


class View(NamedTuple):
    """A row-major rectangle of visual tokens and the part of its picture that it shows."""

    rows: int
    columns: int
    box: tuple[float, float, float, float] | None = (0.0, 0.0, 1.0, 1.0)  # x0, y0, x1, y1 in pictures; None: not known
    at: tuple[int, int] = (0, 0)  # row and column of its first cell in the picture's grid
    starts: bool = True  # a picture of its own; False: the picture of the view before goes on


Views = dict[int, list[View]]  # by token id, in batch order


def views_of(inputs: Mapping[str, Any], anatomy: Anatomy, processor: Any = None, sizes: Iterable[tuple[int, int]] = ()) -> Views:
    """Return the views of a processor's batch, empty where the family or the batch does not tell.

    ``sizes`` holds (width, height) of each picture in pixels, as it was given to ``processor``.
    """
    sizes, images = list(sizes), getattr(processor, "image_processor", None)
    if anatomy.family.grid == "merged":
        return _merged(inputs, anatomy, images, sizes)
    if anatomy.family.grid == "pooled" and inputs.get("image_position_ids") is not None:
        return {anatomy.image_token: [_pooled(place_P2, anatomy.merge_size) for place_P2 in inputs["image_position_ids"]]}
    if anatomy.family.grid == "tiled" and inputs.get("pixel_values") is not None and sizes and images is not None:
        return {anatomy.image_token: _tiled(len(inputs["pixel_values"]), anatomy.tile_side, images, sizes)}
    return {}


def grids_of(grid_I3: Any, merge_size: int) -> list[View]:
    """Return the view of each picture, and of each frame of a video, from (frames, rows, columns) in patches [I, 3]."""
    return [View(h // merge_size, w // merge_size) for t, h, w in torch.as_tensor(grid_I3).tolist() for _ in range(t)]


def unplaced(views: list[View]) -> list[View]:
    """Return the same views with no claim about what part of the picture they show."""
    return [view._replace(box=None) for view in views]


def _merged(inputs: Mapping[str, Any], anatomy: Anatomy, images: Any, sizes: list[tuple[int, int]]) -> Views:
    found: Views = {}
    for token, name in ((anatomy.image_token, "image_grid_thw"), (anatomy.video_token, "video_grid_thw")):
        if token is not None and inputs.get(name) is not None and (token == anatomy.image_token or anatomy.family.video):
            found[token] = grids_of(inputs[name], anatomy.merge_size)
    if anatomy.family.padded:
        for token, views in found.items():
            exact = token == anatomy.image_token and images is not None and len(sizes) == len(views)
            found[token] = [_unpadded(v, images, anatomy.merge_size, size) for v, size in zip(views, sizes)] if exact else unplaced(views)
    return found


def _unpadded(view: View, images: Any, merge_size: int, size: tuple[int, int]) -> View:
    """Return the view with its right and lower edge where the padding ends: beyond the picture's own."""
    from transformers.models.kimi_k25.image_processing_kimi_k25 import navit_resize

    side, (width, height) = images.patch_size * merge_size, size
    limit = images.size["max_height"] if isinstance(images.size, Mapping) else images.size.max_height
    (shown_height, shown_width), _ = navit_resize(height, width, images.patch_size, merge_size, images.max_patches, limit)
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
    for columns, rows in canvases:
        for row in range(rows):
            for column in range(columns):
                box = (column / columns, row / rows, (column + 1) / columns, (row + 1) / rows)
                found.append(View(side, side, box, (row * side, column * side), row == column == 0))
        if columns * rows > 1:
            found.append(View(side, side))
    return found
