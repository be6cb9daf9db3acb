"""Every text of the page in both languages; one table, so that a language is only a key."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

LANGUAGES = ("en", "zh")


@cache
def table() -> dict[str, dict[str, str]]:
    """Return key -> language -> text, with ``{name}`` where a value goes."""
    return json.loads((Path(__file__).parent / "words.json").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Words:
    """The texts of one language: called for plain text, ``html`` for markup with its values escaped."""

    lang: str

    def __call__(self, key: str, /, **values: Any) -> str:
        """Return plain text; whoever puts it into markup escapes it."""
        return table()[key][self.lang].format(**values)

    def html(self, key: str, /, **values: Any) -> str:
        """Return markup: the text's own tags stay, the values are escaped."""
        return table()[key][self.lang].format(**{name: escape(str(value)) for name, value in values.items()})

    def policy(self, preset: str) -> str:
        """Return the name of a preset as the page says it."""
        return self(f"p_{preset}")

    def inside(self, preset: str) -> str:
        """Return the name of a preset as it reads inside a sentence."""
        return self(f"in_{preset}")

    def role(self, modality: int) -> str:
        """Return the name of an expert's modality group."""
        return self({1: "visual", -1: "text"}.get(int(modality), "shared"))

    def ordinal(self, number: int) -> str:
        """Return 1 as "1st" or "第 1"."""
        if self.lang == "zh":
            return f"第 {number}"
        suffix = "th" if 10 < number % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
        return f"{number}{suffix}"

    def label(self, english: str) -> str:
        """Return a row's label of a study in this language if the table knows it, else as it is: most are symbols."""
        for prefix, key in _labels().items():
            if english == prefix or english.startswith(f"{prefix} "):
                return self(key) + english[len(prefix) :]
        found = re.fullmatch(r"(\d+) of (\d+) with a picture", english)
        return self("lab_mix", a=found[1], b=found[2]) if found else english

    def sentence(self, english: str) -> str:
        """Return an engine's sentence in this language if the table knows it, else as it is."""
        for key, pattern in _errors().items():
            found = pattern.fullmatch(english)
            if found:
                return self(key, **found.groupdict())
        return english


@cache
def _labels() -> dict[str, str]:
    keys = [key for key in table() if key.startswith("lab_") and key != "lab_mix"]
    return {table()[key]["en"]: key for key in sorted(keys, key=lambda key: -len(table()[key]["en"]))}


@cache
def _errors() -> dict[str, re.Pattern[str]]:
    keys = [key for key in table() if key.startswith("err_")]
    return {key: re.compile(re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>.+?)", re.escape(table()[key]["en"]))) for key in keys}


def best_language(accepted: str) -> str:
    """Return the language for an Accept-Language header: the first of ours that it names."""
    for item in accepted.lower().split(","):
        tag = item.split(";")[0].strip()
        for lang in LANGUAGES:
            if tag == lang or tag.startswith(f"{lang}-"):
                return lang
    return LANGUAGES[0]
