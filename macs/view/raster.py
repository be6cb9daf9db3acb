"""Maps of many patches as one picture: a mask that the page's style sheet fills with the theme's colour or pattern."""

from __future__ import annotations

import base64
import io
from typing import Sequence

import numpy as np
from PIL import Image

MANY = 2500  # patches above which a map is one picture, not an element per patch
SIDE = 768  # pixels of a mask's longer side

Box = tuple[float, float, float, float]  # x0, y0, x1, y1 as fractions of the picture


def mask(boxes: Sequence[Box], strengths: Sequence[float], width: int, height: int) -> str:
    """Return a data URI for a CSS mask: each box as opaque as its strength from 0 to 1, nothing elsewhere."""
    scale = SIDE / max(width, height, 1)
    across, down = (max(1, round(side * scale)) for side in (width, height))
    alpha_YX = np.zeros((down, across), np.uint8)
    edges_B4 = np.rint(np.array(boxes, float).reshape(-1, 4) * (across, down, across, down)).astype(int)
    for (x0, y0, x1, y1), strength in zip(edges_B4.tolist(), strengths):
        alpha_YX[y0 : max(y1, y0 + 1), x0 : max(x1, x0 + 1)] = round(255 * float(strength))
    buffer = io.BytesIO()
    Image.merge("LA", (Image.new("L", (across, down)), Image.fromarray(alpha_YX))).save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


def layer(kind: str, uri: str) -> str:
    """Return an element of class ``kind`` that is seen through a mask."""
    return f'<i class="through {kind}" style="--mask:url({uri})"></i>'
