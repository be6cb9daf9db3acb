"""Pictures from outside: one function from a file of unknown make to an upright RGB image, or one plain sentence.

The limits are checked on the header, before a pixel is decoded.
"""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")  # by content; the file's name says nothing
MAX_PIXELS = 64_000_000  # 48-megapixel phone photographs pass; a decoder then needs about 200 MB
MAX_RATIO = 200  # long side ÷ short side, the limit of Qwen-VL processors
BACKGROUND = (255, 255, 255)  # under transparent pixels; whatever colour they hide never reaches the model
PREVIEW_SIDE = 896  # pixels of the copy that a trace carries


@dataclass(frozen=True)
class Picture:
    """An upright RGB image and what was done to the file to get it."""

    image: Image.Image
    notices: tuple[str, ...] = ()


def open_image(source: str | Path | bytes) -> Picture:
    """Return the picture in a file or in bytes; raises ValueError with one sentence if it cannot be used."""
    try:
        data = source if isinstance(source, bytes) else Path(source).read_bytes()
    except OSError:
        raise ValueError("There is no such image file; choose another one.") from None
    if not data:
        raise ValueError("This image file is empty; choose another one.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the limit below is stricter
        return _decode(data)


def _decode(data: bytes) -> Picture:
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as opened:
            _check_size(*opened.size)
            frames = getattr(opened, "n_frames", 1)
            notices = (f"The file has {frames} frames; the first is used.",) if frames > 1 else ()
            opened.seek(0)
            opened.load()
            upright = ImageOps.exif_transpose(opened)
            return Picture(to_rgb(upright), notices)
    except UnidentifiedImageError:
        raise ValueError("This file cannot be read as an image. Use PNG, JPEG or WebP.") from None
    except Image.DecompressionBombError:
        raise ValueError(f"This image has too many pixels; at most {MAX_PIXELS / 1e6:.0f} megapixels are read.") from None
    except (OSError, SyntaxError, EOFError, IndexError, KeyError, TypeError, OverflowError, MemoryError):
        # Pillow's decoders answer a damaged file with any of these.
        raise ValueError("This image is damaged and cannot be decoded; save it again or choose another one.") from None


def _check_size(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise ValueError(f"This image has {width} × {height} pixels; at most {MAX_PIXELS / 1e6:.0f} megapixels are read.")
    if max(width, height) > MAX_RATIO * min(width, height):
        raise ValueError(f"This image is {width} × {height}; its sides may differ by a factor of {MAX_RATIO} at most.")


def to_rgb(image: Image.Image) -> Image.Image:
    """Return ``image`` as RGB: 16 bits scaled to 8, transparency laid on ``BACKGROUND``; raises ValueError for float pixels."""
    if image.mode == "F":
        raise ValueError("This image holds floating-point pixels; save it with 8 or 16 bits per channel.")
    if image.mode.startswith("I"):
        values = np.asarray(image).astype(np.int64)
        wide = image.mode.startswith("I;16") or values.max(initial=0) > 255
        levels = np.clip(values // 257 if wide else values, 0, 255).astype(np.uint8)
        return Image.fromarray(levels).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        straight = image.convert("RGBA")
        ground = Image.new("RGBA", straight.size, (*BACKGROUND, 255))
        return Image.alpha_composite(ground, straight).convert("RGB")
    return image.convert("RGB")


def preview(image: Image.Image) -> bytes:
    """Return a PNG copy, at most ``PREVIEW_SIDE`` pixels a side, for the trace and the page."""
    small = image.copy()
    small.thumbnail((PREVIEW_SIDE, PREVIEW_SIDE))
    buffer = io.BytesIO()
    small.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()
