"""Small pieces of markup that several regions share. Every user's or model's text goes through ``esc``."""

from __future__ import annotations

from html import escape
from typing import Iterable

from macs.config import Policy
from macs.trace import DROPPED, EXPANDED, KEPT, REROUTED

FATE_CLASS = {KEPT: "pat-k", REROUTED: "pat-i", DROPPED: "pat-d", EXPANDED: "pat-i"}
FATE_WORD = {KEPT: "kept", REROUTED: "rerouted", DROPPED: "dropped", EXPANDED: "expanded"}


def esc(text: object) -> str:
    """Return ``text`` safe inside markup and attributes."""
    return escape(str(text), quote=True)


def num(value: float, digits: int = 2) -> str:
    """Return a number with a fixed count of digits; a true minus sign."""
    return f"{value:.{digits}f}".replace("-", "−")


def gamma_text(policy: Policy) -> str:
    """Return "γ 1.00"; nothing for a policy that drops nothing, which has no capacity to scale."""
    return "" if policy.overflow == "none" else f"γ {policy.gamma:.2f}"


def short(value: float) -> str:
    """Return a length or a share for a style attribute, without trailing zeros."""
    return f"{value:.2f}".rstrip("0").rstrip(".") or "0"


def heading(title: str, aside: str = "", *, level: int = 2) -> str:
    """Return a section's head: its title and, at the right, markup of what stands beside it."""
    return f'<div class="hd"><h{level}>{esc(title)}</h{level}>{aside}</div>'


def segments(name: str, options: Iterable[tuple[str, str]], current: str, label: str) -> str:
    """Return a small switch; page.js acts on ``data-set``."""
    buttons = "".join(
        f'<button type="button" data-set="{esc(name)}" data-value="{esc(value)}" aria-pressed="{str(value == current).lower()}">{esc(text)}</button>'
        for value, text in options
    )
    return f'<span class="seg" role="group" aria-label="{esc(label)}">{buttons}</span>'
