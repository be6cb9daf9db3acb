"""The picture that a trace carries, as the page shows it: once in a style sheet, from where every map draws it."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass

from PIL import Image

from macs.engine.intake import open_image
from macs.trace import Trace

HATCH = (  # the pattern of waiting, which every figure shares
    '<svg width="0" height="0" aria-hidden="true"><defs><pattern id="hatch" width="4" height="4" patternUnits="userSpaceOnUse">'
    '<line class="hatch-line" x1="0.5" y1="0" x2="0.5" y2="4"/></pattern></defs></svg>'
)
SIDE = 768  # pixels; twice the widest map


@dataclass(frozen=True)
class Picture:
    """One picture for the page: a data URI and its proportions."""

    uri: str
    width: int
    height: int


def pictures(trace: Trace) -> tuple[Picture, ...]:
    """Return the trace's pictures, reduced to what the page needs; raises ValueError, as the intake does, if one is none."""
    return tuple(_picture(data) for data in trace.images)


def _picture(data: bytes) -> Picture:
    image = open_image(data).image  # a trace file may hold anything
    width, height = image.size
    image.thumbnail((SIDE, SIDE))
    packed = min(("PNG", "JPEG"), key=lambda kind: len(_packed(image, kind)))  # drawings are smaller as PNG, photographs as JPEG
    encoded = base64.b64encode(_packed(image, packed)).decode("ascii")
    return Picture(f"data:image/{packed.lower()};base64,{encoded}", width, height)


def _packed(image: Image.Image, kind: str) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **({"quality": 88} if kind == "JPEG" else {"optimize": False}))
    return buffer.getvalue()


def style(shown_pictures: tuple[Picture, ...]) -> str:
    """Return a style sheet that names the pictures ``--picture-0``, ``--picture-1`` and so on, and the hatch of the figures."""
    names = ";".join(f'--picture-{i}:url("{p.uri}")' for i, p in enumerate(shown_pictures))
    return f"<style>:root{{{names}}}</style>{HATCH}"
