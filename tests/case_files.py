"""Files of the kinds that go wrong elsewhere, made in memory: rotated, transparent, 16-bit, animated, cut, bombs, thin, disguised."""

import io
import zlib

import numpy as np
from PIL import Image

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)
SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="64" height="64"><script>alert(1)</script><rect width="64" height="64" fill="red"/></svg>'
HTML = b"<html><body><script>alert(1)</script></body></html>"


def encoded(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def rotated(tag: int, size: tuple[int, int] = (640, 480)) -> bytes:
    """A JPEG that stores its left tenth red and its bottom tenth green, and says by ``tag`` how it was held."""
    width, height = size
    stored = Image.new("RGB", size)
    stored.paste(RED, (0, 0, width // 10, height))
    stored.paste(GREEN, (0, height - height // 10, width, height))
    held = Image.Exif()
    held[0x0112] = tag
    return encoded(stored, "JPEG", exif=held, quality=95)


def veiled(mode: str = "RGBA") -> bytes:
    """64 × 64 random colours, all of them transparent but for the square in the middle."""
    pixels = noise(64, 64, 4)
    pixels[..., 3] = 0
    pixels[16:48, 16:48, 3] = 255
    if mode == "LA":
        return encoded(Image.fromarray(pixels[..., [0, 3]], "LA"))
    return encoded(Image.fromarray(pixels, "RGBA"), "WEBP" if mode == "WEBP" else "PNG", **({"lossless": True, "exact": True} if mode == "WEBP" else {}))


def ramp(kind: str) -> bytes:
    """256 × 256 pixels that hold each of the 65,536 levels of 16 bits once."""
    return encoded(Image.fromarray(np.arange(65536, dtype=np.uint16).reshape(256, 256)), kind)


def moving(kind: str) -> bytes:
    first, *rest = (Image.new("RGB", (64, 64), colour) for colour in (RED, GREEN, BLUE))
    return encoded(first, kind, save_all=True, append_images=rest)


def bomb(side: int) -> bytes:
    """A PNG of ``side`` × ``side`` one-bit pixels, some ten thousand times smaller than they are."""
    head = side.to_bytes(4, "big") * 2 + bytes((1, 0, 0, 0, 0))
    rows = zlib.compress(bytes(side * (1 + -(-side // 8))), 9)
    out = b"\x89PNG\r\n\x1a\n"
    for kind, body in ((b"IHDR", head), (b"IDAT", rows), (b"IEND", b"")):
        out += len(body).to_bytes(4, "big") + kind + body + zlib.crc32(kind + body).to_bytes(4, "big")
    return out


def plain(width: int, height: int, colour=BLUE) -> bytes:
    return encoded(Image.new("RGB", (width, height), colour))
