"""What one browser tab owns between events: the page's content, its language, and the run it has started."""

from __future__ import annotations

import threading
from typing import Callable

from macs.config import Policy
from macs.view import difference, export_panel, findings, gantt, header, heat, layers, ledger, maps, method, picker, picture, queues, results, selection, tokens, trade
from macs.view.curves import Curves
from macs.view.header import READY, Status
from macs.view.markup import esc, heading
from macs.view.shown import Shown
from macs.view.words import LANGUAGES, Words

# Region -> markup; the page has one component for each, and sends only those that changed.
REGIONS: dict[str, Callable[[Shown, Words], str]] = {
    "picture": lambda shown, words: picture.style(shown.pictures),
    "picker": picker.render,
    "findings": findings.render,
    "ledger": ledger.render,
    "weights": maps.weights,
    "losses": maps.losses,
    "queues": queues.render,
    "selection": selection.render,
    "gantt": gantt.render,
    "heat": heat.render,
    "difference": difference.render,
    "layers": layers.render,
    "tokens": tokens.render,
    "results": results.render,
    "export": export_panel.render,
    "method": method.render,
}
NEED_SCORES = {"weights": "weights_t", "losses": "lost_t", "difference": "tab_sides"}  # regions that show nothing without scores, and their titles
STATUS_REGIONS: dict[str, Callable[[Shown, Words, Status], str]] = {"header": header.header, "status": header.status_line}
ALL = (*STATUS_REGIONS, *REGIONS, "trade")


class Session:
    """Mutable, one per tab; its lock makes events that overlap (a slider, a click) apply one after the other."""

    def __init__(self, shown: Shown, curves: Curves | None = None, sent: dict[str, str] | None = None, found: str = "") -> None:
        self.shown = shown
        self.found = found  # the engine's sentence on the hardware that it runs on
        self.curves = curves  # the last ones computed; of use while they fit what is shown
        self.lang = LANGUAGES[0]
        self.status = READY
        self.sent = dict(sent or {})  # what the tab last got, region by region
        self.wanted: tuple[Policy, str, int] | None = None  # the controls' settings, when they were last seen
        self.stop = threading.Event()
        self.running = False
        self.answers = 0  # sent so far
        self.lock = threading.RLock()

    def __deepcopy__(self, memo: dict) -> Session:
        """Return a new tab's session: gradio copies the first one for each; the content is immutable and shared."""
        return Session(self.shown, self.curves, self.sent, self.found)

    @property
    def words(self) -> Words:
        return Words(self.lang)

    def changes(self) -> dict[str, str]:
        """Return the regions whose markup is not what the tab already has; call with the lock held."""
        new = render(self.shown, self.words, self.status, self.curves)
        changed = {name: html for name, html in new.items() if self.sent.get(name) != html}
        self.sent = new
        return self._numbered(changed)

    def status_changes(self, status: Status) -> dict[str, str]:
        """Return header and status line under a new status, the only regions that a run in progress touches."""
        with self.lock:
            self.status = status
            new = {name: view(self.shown, self.words, status) for name, view in STATUS_REGIONS.items()}
            changed = {name: html for name, html in new.items() if self.sent.get(name) != html}
            self.sent.update(new)
            return self._numbered(changed)

    def _numbered(self, changed: dict[str, str]) -> dict[str, str]:
        """Return the regions with the number of this answer in them: page.js asks for everything when an older one comes late."""
        self.answers += 1
        return {name: f'{html}<i hidden data-answer="{self.answers}"></i>' for name, html in changed.items()}

    def everything(self) -> dict[str, str]:
        """Return every region, whatever the tab has."""
        with self.lock:
            self.sent = {}
            return self.changes()


def render(shown: Shown, words: Words, status: Status = READY, curves: Curves | None = None) -> dict[str, str]:
    """Return every region's markup."""
    regions = {name: _region(name, shown, words) for name in REGIONS}
    regions |= {name: view(shown, words, status) for name, view in STATUS_REGIONS.items()}
    regions["trade"] = trade.render(shown, words, curves if curves and curves.fit(shown) else None) if shown.scored else ""
    return regions


def _region(name: str, shown: Shown, words: Words) -> str:
    if name in NEED_SCORES and not shown.scored:
        return heading(words(NEED_SCORES[name], l=shown.number)) + f'<div class="map empty">{esc(words("unscored_map"))}</div>'
    return REGIONS[name](shown, words)
