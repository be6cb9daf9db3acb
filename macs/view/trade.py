"""What a given time costs: answer change of the runs, and pairs dropped over γ, against the straggler factor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from macs.engine.compare import MAX_GAMMA
from macs.trace import DROPPED, Trace
from macs.view import svg
from macs.view.curves import Curve, Curves
from macs.view.markup import esc, gamma_text, num
from macs.view.shown import Shown
from macs.view.words import Words

WIDTH, HEIGHT = 420, 328
LEFT, RIGHT = 44, 412
TOP = (18, 118)  # pixels of the upper panel, from its top to its bottom
LOW = (158, 288)
LINE = 13  # pixels from one label to the next


@dataclass(frozen=True)
class Axes:
    """From numbers to pixels."""

    x_low: float
    x_high: float
    log_low: int  # decades of the upper panel
    log_high: int
    share: float  # top of the lower panel

    def x(self, straggler: float) -> float:
        return LEFT + (RIGHT - LEFT) * (straggler - self.x_low) / (self.x_high - self.x_low)

    def kl(self, value: float) -> float:
        level = np.clip(np.log10(max(value, 1e-12)), self.log_low, self.log_high)
        return TOP[1] - (TOP[1] - TOP[0]) * (level - self.log_low) / (self.log_high - self.log_low)

    def drop(self, share: float) -> float:
        return LOW[1] - (LOW[1] - LOW[0]) * min(share / self.share, 1.0)


def render(shown: Shown, words: Words, curves: Curves | None = None) -> str:
    """Return the figure; without curves, the four points alone."""
    head = f"<h2>{esc(words('fig_trade'))}</h2><p>{esc(words('fig_trade_s'))}</p>"
    say = sentence(shown, words)
    axes = _axes(shown, curves)
    body = _grid(axes, words) + _lower(shown, words, axes, curves) + _upper(shown, words, axes)
    return f'{head}{svg.figure(WIDTH, HEIGHT, say, body)}<p class="fn">{esc(say)}</p>{_equal(shown, words)}'


def _equal(shown: Shown, words: Words) -> str:
    """Return the button that gives the baseline the policy's time; where there is none to press, what is so or why it cannot be."""
    now = shown.now.same_time
    gamma, reached = (now.policy.gamma, shown.now.same_time_reached) if shown.now.planned else shown.now.own_gamma
    values = {"base": words.inside(now.policy.preset), "x": num(now.straggler())}
    if not reached:
        return _told(words("equal_unreached", max=f"{MAX_GAMMA:g}", **values))
    if now.policy.overflow == "none":
        return _told(words("equal_fixed", **values))
    if shown.equalized:
        return _told(words("equal_set", g=f"{now.policy.gamma:.2f}", **values))
    text = words("equal_press", g=f"{gamma:.2f}", **values)
    return f'<div class="takes"><button type="button" class="take" data-send="equal" data-value="1">{esc(text)}</button></div>'


def _told(text: str) -> str:
    return f'<p class="fn">{esc(text)}</p>'


def sentence(shown: Shown, words: Words) -> str:
    """Say in numbers what policy and baseline drop at the same γ and in the same time."""
    now = shown.now
    names = {"name": words.inside(now.policy.policy.preset), "base": words.inside(now.same_time.policy.preset)}
    values = {
        "d": _percent(now.policy.share(DROPPED)),
        "x": num(now.policy.straggler()),
        "g": f"{now.same_time.policy.gamma:.2f}",
        "e": _percent(now.same_time.share(DROPPED)),
        "f": _percent(now.same_gamma.share(DROPPED)),
        "y": num(now.same_gamma.straggler()),
    }
    key = {"met": "trade_line", "near": "trade_near", "fixed": "trade_fixed", "unreached": "trade_unreached"}[shown.same_time]
    return words(key, z=num(now.same_time.straggler()), **names, **values)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def _axes(shown: Shown, curves: Curves | None) -> Axes:
    now, run = shown.now, shown.run
    traces = [now.same_gamma, now.same_time, now.policy, run.same_gamma, run.same_time, run.policy]
    xs = [trace.straggler() for trace in traces]
    shares = [trace.share(DROPPED) for trace in traces[:3]]
    if curves:
        xs += [curves.base.straggler.min(), curves.base.straggler.max(), curves.policy.straggler.min(), curves.policy.straggler.max()]
        shares += [curves.base.dropped.max(), curves.policy.moved.max()]
    margin = 0.04 * max(max(xs) - min(xs), 0.1)
    kls = [trace.kl for trace in traces[3:] if trace.kl]
    low = int(np.floor(np.log10(min(kls)))) if kls else -3
    high = max(int(np.ceil(np.log10(max(kls)))), low + 1) if kls else 0
    return Axes(min(xs) - margin, max(xs) + margin, low, high, max(0.05, max(shares) * 1.04))


def _grid(axes: Axes, words: Words) -> str:
    parts = []
    for decade in range(axes.log_low, axes.log_high + 1):
        y = axes.kl(10.0**decade)
        parts += [svg.line((LEFT, y), (RIGHT, y), "gl"), svg.text(LEFT - 6, y + 4, f"{10.0**decade:g}", "", "end")]
    for share in svg.ticks(0, axes.share, 5):
        y = axes.drop(share)
        parts += [svg.line((LEFT, y), (RIGHT, y), "gl"), svg.text(LEFT - 6, y + 4, f"{100 * share:g}%", "", "end")]
    for x in svg.ticks(axes.x_low, axes.x_high):
        parts.append(svg.text(axes.x(x), LOW[1] + 16, f"{x:g}", "", "middle"))
    parts += [svg.text(LEFT, 11, words("y_kl")), svg.text(LEFT, LOW[0] - 7, words("y_drop"))]
    return "".join(parts) + svg.text(RIGHT, HEIGHT - 7, words("x_time"), "", "end")


def _lower(shown: Shown, words: Words, axes: Axes, curves: Curves | None) -> str:
    now = shown.now
    parts = []
    if curves:
        parts += [svg.polyline(_along(curves.policy, curves.policy.moved, axes), "c3"), svg.polyline(_along(curves.base, curves.base.dropped, axes), "c1")]
        parts += [svg.polyline(_along(curves.policy, curves.policy.dropped, axes), "c2")]
        middle = len(curves.policy.gamma) // 2
        at = axes.x(curves.policy.straggler[middle]), axes.drop(curves.policy.moved[middle])
        parts.append(svg.text(min(at[0] + 6, RIGHT - 110), at[1] - 6, words("drop_or_rer"), "halo"))
        parts += _points(curves, axes)
    x = axes.x(now.policy.straggler())
    parts += [svg.line((x, TOP[0]), (x, LOW[1]), "eq"), _beside(x, words("same_time"))]
    parts += [svg.circle((axes.x(t.straggler()), axes.drop(t.share(DROPPED))), 5.5, _label(t, words)) for t in (now.same_gamma, now.same_time)]
    parts.append(svg.diamond((x, axes.drop(now.policy.share(DROPPED))), 5.5, _label(now.policy, words)))
    return "".join(parts)


def _beside(x: float, text: str) -> str:
    left = x > RIGHT - 80
    return svg.text(x - 5 if left else x + 5, LOW[0] - 7, text, "st halo", "end" if left else "start")


def _along(curve: Curve, share: np.ndarray, axes: Axes) -> list[svg.Point]:
    return [(axes.x(x), axes.drop(y)) for x, y in zip(curve.straggler, share)]


def _points(curves: Curves, axes: Axes) -> list[str]:
    """Return small marks that tell their γ when pointed at."""
    marks = []
    for curve, mark in ((curves.base, svg.circle), (curves.policy, svg.diamond)):
        for gamma, x, y in zip(curve.gamma, curve.straggler, curve.dropped):
            marks.append(mark((axes.x(x), axes.drop(y)), 2.5, f"γ {gamma:.2f}: {num(x)}, {_percent(y)}"))
    return marks


def _upper(shown: Shown, words: Words, axes: Axes) -> str:
    """Return one mark per run: the answers' KL is known only where the model ran."""
    run = shown.run
    marks, labels = [], []
    for trace, mark in ((run.policy, svg.diamond), (run.same_time, svg.circle), (run.same_gamma, svg.circle)):
        at = axes.x(trace.straggler()), axes.kl(trace.kl or 0.0)
        marks.append(mark(at, 5.5, f"{_label(trace, words)}, KL {num(trace.kl or 0.0, 3)}"))
        left = at[0] > (LEFT + RIGHT) / 2
        name = f"{words.policy(trace.policy.preset)} {gamma_text(trace.policy)}"
        y = at[1] - 6
        while any(abs(y - other) < LINE for _, other, *_ in labels):  # one under the other where they would meet
            y += LINE
        labels.append((at[0] - 9 if left else at[0] + 9, y, name, "halo st" if trace is run.policy else "halo", "end" if left else "start"))
    return "".join(marks) + "".join(svg.text(*label) for label in labels)


def _label(trace: Trace, words: Words) -> str:
    return f"{words.policy(trace.policy.preset)} {gamma_text(trace.policy)}: {num(trace.straggler())}, {_percent(trace.share(DROPPED))}"
