"""Reads markup in tests: elements with their attributes and all their text, in order."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"col", "br", "img", "input", "meta", "link", "hr"}


@dataclass
class Element:
    tag: str
    attrs: dict[str, str]
    parts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return " ".join("".join(self.parts).split())

    def has(self, name: str) -> bool:
        return name in self.attrs.get("class", "").split()


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[Element] = []
        self.found: list[Element] = []

    def handle_starttag(self, tag, attrs):
        element = Element(tag, {k: v or "" for k, v in attrs})
        self.found.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attrs):
        self.found.append(Element(tag, {k: v or "" for k, v in attrs}))

    def handle_endtag(self, tag):
        assert self.open and self.open[-1].tag == tag, f"</{tag}> closes {self.open[-1].tag if self.open else 'nothing'}"
        self.open.pop()

    def handle_data(self, data):
        for element in self.open:
            element.parts.append(data)


def read(markup: str) -> list[Element]:
    """Return every element of ``markup``; fails where a tag is closed that is not open, or left open."""
    reader = _Reader()
    reader.feed(markup)
    reader.close()
    assert not reader.open, f"<{reader.open[-1].tag}> is never closed"
    return reader.found


def one(markup: str, **wanted: str) -> Element:
    """Return the only element whose attributes have these values (``data_row`` stands for ``data-row``)."""
    names = {name.rstrip("_").replace("_", "-"): value for name, value in wanted.items()}
    hits = [e for e in read(markup) if all(e.attrs.get(name) == value for name, value in names.items())]
    assert len(hits) == 1, f"{len(hits)} elements have {names}"
    return hits[0]
