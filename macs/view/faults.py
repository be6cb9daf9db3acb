"""Which field of the page an error speaks of, read from the sentence as the engine and the policy say it."""

from __future__ import annotations

import re

from macs.view.settings import FIELDS

NAMED = "|".join(field.name for field in FIELDS)
SPEAKS_OF = (  # how the sentence starts -> the field's element id
    (r"This image|There is no such image|This file cannot be read as an image", "upload"),
    (r"Write a prompt|This prompt", "prompt"),
    (r"This trace holds no entropies", "set-entropy_source"),
)


def field_of(sentence: str) -> str:
    """Return the element id of the field that caused an error; nothing where no single field did."""
    setting = re.match(rf"({NAMED}) is ", sentence)
    if setting:
        return f"set-{setting[1]}"
    return next((field for start, field in SPEAKS_OF if re.match(start, sentence)), "")
