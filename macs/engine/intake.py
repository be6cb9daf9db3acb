"""Pictures from outside: one function from a file of unknown make to an upright RGB image, or one plain sentence.

The limits are checked on the header, before a pixel is decoded.
"""

from __future__ import annotations

import io
import threading
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")  # by content; the file's name says nothing
MAX_BYTES = 64_000_000  # of the file
MAX_PIXELS = 64_000_000  # 48-megapixel phone photographs pass; a decoder then needs about 200 MB
MAX_RATIO = 200  # long side ÷ short side, the limit of Qwen-VL processors
BACKGROUND = (255, 255, 255)  # under transparent pixels; whatever colour they hide never reaches the model
PREVIEW_SIDE = 896  # pixels of the copy that a trace carries
MAX_PICTURES = 8  # of one request; each is at most two views of a trace
MAX_FRAMES = 8  # of a video that the model sees
FRAME_SIDE = 448  # pixels a side of them at most
MAX_FILE_FRAMES = 1000  # to reach a frame, all before it are decoded


@dataclass(frozen=True)
class Picture:
    """An upright RGB image and what was done to the file to get it."""

    image: Image.Image
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Clip:
    """Frames of an animated picture, upright RGB of one size, and how many of them make a second."""

    frames: tuple[Image.Image, ...]
    fps: float
    notices: tuple[str, ...] = ()


_decoding = threading.Lock()  # one large picture at a time: eight decoders at once would need gigabytes


def open_image(source: str | Path | bytes) -> Picture:
    """Return the picture in a file or in bytes; raises ValueError with one sentence if it cannot be used."""
    data = source if isinstance(source, bytes) else _read(Path(source))
    if not data:
        raise ValueError("This image file is empty; choose another one.")
    if len(data) > MAX_BYTES:
        raise ValueError(f"This image file has {len(data):,} bytes; at most {MAX_BYTES:,} are read.")
    with _decoding, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of bombs: the limit below is stricter; of odd metadata: the picture decides
        return _decode(data)


def open_frames(source: str | Path) -> Clip:
    """Return frames of an animated GIF, WebP or PNG, evenly spaced if there are more than ``MAX_FRAMES``; raises ValueError as ``open_image``."""
    data = _read(Path(source))
    open_image(data)  # its checks, and its sentences
    with _decoding, warnings.catch_warnings(), Image.open(io.BytesIO(data), formats=FORMATS) as opened:
        warnings.simplefilter("ignore")
        count = getattr(opened, "n_frames", 1)
        if count < 2:
            raise ValueError("This file holds one picture, no video; use an animated GIF, WebP or PNG.")
        if count > MAX_FILE_FRAMES:
            raise ValueError(f"This file has {count} frames; at most {MAX_FILE_FRAMES} are read.")
        chosen = np.linspace(0, count - 1, min(count, MAX_FRAMES)).round().astype(int).tolist()
        try:
            frames, seconds = zip(*[_frame(opened, i) for i in chosen])
        except (OSError, EOFError, SyntaxError, ValueError) as error:
            raise ValueError("This video is damaged and cannot be decoded; save it again or choose another one.") from error
    shown = [] if count == len(chosen) else [f"The video has {count} frames; the model sees {len(chosen)} of them, evenly spaced."]
    if max(frames[0].size) > FRAME_SIDE:
        shown.append(f"Its frames are reduced to {FRAME_SIDE} pixels on the long side.")
        for frame in frames:
            frame.thumbnail((FRAME_SIDE, FRAME_SIDE))
    return Clip(frames, len(chosen) / max(float(np.mean(seconds)) * count, 1e-3), tuple(shown))


def _frame(opened: Image.Image, index: int) -> tuple[Image.Image, float]:
    """Return a frame and how many seconds it stands."""
    opened.seek(index)
    return to_rgb(opened.copy()), (opened.info.get("duration") or 100) / 1000  # viewers show a frame that names no time for a tenth of a second


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except (OSError, ValueError):  # ValueError: a name that no file can have
        raise ValueError("There is no such image file; choose another one.") from None


def _decode(data: bytes) -> Picture:
    try:
        opened = Image.open(io.BytesIO(data), formats=FORMATS)
    except Image.DecompressionBombError:
        raise ValueError(f"This image has too many pixels; at most {MAX_PIXELS / 1e6:.0f} megapixels are read.") from None
    except Exception:
        raise ValueError(f"This file cannot be read as an image. Use {', '.join(FORMATS[:-1])} or {FORMATS[-1]}.") from None
    with opened:
        _check_size(*opened.size)
        try:
            notices = ("The file is animated; its first frame is used.",) if getattr(opened, "is_animated", False) else ()
            opened.seek(0)
            opened.load()
            upright = ImageOps.exif_transpose(opened)
        except Exception as error:  # Pillow's decoders answer damage with almost any of them
            raise ValueError("This image is damaged and cannot be decoded; save it again or choose another one.") from error
        _check_size(*upright.size)  # a file may say one size and hold another
        return Picture(to_rgb(upright), notices)


def _check_size(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise ValueError(f"This image has {width} × {height} pixels; at most {MAX_PIXELS / 1e6:.0f} megapixels are read.")
    if max(width, height) > MAX_RATIO * min(width, height):
        raise ValueError(f"This image is {width} × {height}; its sides may differ by a factor of {MAX_RATIO} at most.")


def to_rgb(image: Image.Image) -> Image.Image:
    """Return ``image`` as RGB: 16 bits scaled to 8, transparency laid on ``BACKGROUND``; raises ValueError for other pixels."""
    if image.mode == "F" or image.mode.startswith("I"):
        return _from_wide(image)
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        straight = image.convert("RGBA")
        ground = Image.new("RGB", straight.size, BACKGROUND)
        ground.paste(straight, mask=straight.getchannel("A"))
        return ground
    try:
        return image.convert("RGB")
    except ValueError:
        raise ValueError(f"This image holds {image.mode} pixels, which are not read; save it as RGB.") from None


def _from_wide(image: Image.Image) -> Image.Image:
    """Return RGB of one channel of more than 8 bits; what is marked as transparent becomes ``BACKGROUND``."""
    values = np.asarray(image)
    if image.mode == "F" or values.min(initial=0) < 0 or values.max(initial=0) > 65535:
        raise ValueError("This image holds floating-point or 32-bit pixels; save it with 8 or 16 bits per channel.")
    wide = image.mode.startswith("I;16") or values.max(initial=0) > 255
    grey = Image.fromarray((values // 257 if wide else values).astype(np.uint8)).convert("RGB")
    if isinstance(hidden := image.info.get("transparency"), int):
        grey.paste(BACKGROUND, mask=Image.fromarray(values == hidden))
    return grey


def preview(image: Image.Image, side: int = PREVIEW_SIDE) -> bytes:
    """Return a PNG copy, at most ``side`` pixels a side, for the trace and the page."""
    small = image.copy()
    small.thumbnail((side, side))
    buffer = io.BytesIO()
    small.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()
