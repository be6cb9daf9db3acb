"""The results tab: every figure drawn from the files that the studies wrote, each with its command, date, machine and model."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, Callable, Sequence

from macs.config import NAMED
from macs.engine.base import RESULTS
from macs.view import svg
from macs.view.markup import esc, heading, num
from macs.view.shown import Shown
from macs.view.words import Words

ORDER = ("equal_time", "main", "gamma", "ablations", "mix", "ranks", "batch")
WIDTH, HEIGHT = 640, 330
LEFT, RIGHT, TOP, BOTTOM = 48, 500, 18, 286
LINE = 13  # pixels from one label to the next
STRONG = ("macs", "token_drop")  # drawn with their intervals; the others are context
Row = dict[str, Any]


@cache
def files(folder: Path = RESULTS / "tables") -> dict[str, dict[str, Any]]:
    """Return the tables that ship, by name in the order of the tab."""
    found = {path.stem: json.loads(path.read_text("utf-8")) for path in folder.glob("*.json")} if folder.is_dir() else {}
    return {name: found[name] for name in ORDER if name in found}


def render(shown: Shown, words: Words) -> str:
    """Return every table that ships; what is on the page besides does not matter."""
    return _rendered(words.lang)


@cache
def _rendered(lang: str) -> str:
    words, found = Words(lang), files()
    if not found:
        return f'<p class="fn">{esc(words("res_none"))}</p>'
    return f'<p class="fn">{esc(words("res_s"))}</p>' + "".join(section(name, table, words) for name, table in found.items())


def section(name: str, table: dict[str, Any], words: Words) -> str:
    """Return one table: what it says in a sentence, its figure if it has one, its rows, and where they are from."""
    rows = table["rows"]
    figure = {"equal_time": _over_target, "gamma": _over_gamma}.get(name)
    source = words("res_source", command=table["command"], date=table["date"][:10], machine=table["machine"], model=table["model"],
                   hash=table["model_sha256"][:12], n=table["questions"], batch=table["batch"])  # fmt: skip
    return (
        f'<section class="result" id="res-{name}">{heading(words(f"res_{name}"), level=3)}<p class="fn">{esc(words(f"res_{name}_s"))}</p>'
        f'{figure(rows, words) if figure else ""}{_table(rows, words)}<p class="fn">{esc(source)}</p></section>'
    )


def _label(row: Row, words: Words) -> str:
    """Return the name of a row: its policy's, or what was changed in it."""
    return words.policy(row["policy"]) if row["plain"] and row["policy"] in NAMED else words.label(row["label"])


def _table(rows: Sequence[Row], words: Words) -> str:
    grouped = any(row.get("group") for row in rows)
    heads = ["res_policy", "gamma_short", "res_right", "res_relative", "res_rank", "res_expert", "dropped", "rerouted", "res_n"]
    head = "".join(f'<th scope="col"{"" if i == 0 else " class=num"}>{esc(words(key))}</th>' for i, key in enumerate(heads))
    body, last = "", None
    for row in rows:
        if grouped and row.get("group") != last:
            last = row["group"]
            body += f'<tr class="grp"><th colspan="{len(heads)}" scope="rowgroup">{esc(words.label(last))}</th></tr>'
        low, high = row["relative_interval"]
        spread = f"{_percent(row['relative'])} <small>{_percent(low)} – {_percent(high)}</small>" if row["policy"] != "vanilla" else "100%"
        cells = [
            "–" if row["policy"] == "vanilla" else f"{row['gamma']:.2f}",
            _percent(row["overall"]),
            spread,
            num(row["straggler"]),
            num(row["expert_straggler"]),
            _percent(row["dropped"]),
            _percent(row["rerouted"]),
            str(row["questions"]),
        ]
        body += f'<tr><th scope="row">{esc(_label(row, words))}</th>' + "".join(f'<td class="num">{cell}</td>' for cell in cells) + "</tr>"
    return f'<div class="scroll" tabindex="0"><table class="numbers"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def _over_target(rows: Sequence[Row], words: Words) -> str:
    return _lines(rows, lambda row: row["target"], words("res_x_target"), words)


def _over_gamma(rows: Sequence[Row], words: Words) -> str:
    swept = [row for row in rows if row["policy"] != "vanilla"]
    return _lines(swept, lambda row: row["gamma"], words("res_x_gamma"), words)


def _lines(rows: Sequence[Row], x_of: Callable[[Row], float], title: str, words: Words) -> str:
    """Return one line per policy over ``x_of``: share of vanilla's right answers, the two that matter with 95 % intervals."""
    by_label: dict[str, list[Row]] = {}
    for row in rows:
        by_label.setdefault(_label(row, words), []).append(row)
    xs = [x_of(row) for row in rows]
    lows = [row["relative_interval"][0] for row in rows if row["policy"] in STRONG] + [row["relative"] for row in rows]
    highs = [row["relative_interval"][1] for row in rows if row["policy"] in STRONG] + [1.0]
    x_low, x_high, y_low, y_high = min(xs), max(xs), min(lows), max(highs)

    def at(x: float, y: float) -> svg.Point:
        return LEFT + (RIGHT - LEFT) * (x - x_low) / max(x_high - x_low, 1e-9), BOTTOM - (BOTTOM - TOP) * (y - y_low) / max(y_high - y_low, 1e-9)

    body = "".join(svg.line(at(x_low, y), at(x_high, y), "gl") + svg.text(LEFT - 6, at(x_low, y)[1] + 4, f"{100 * y:g}%", "", "end") for y in svg.ticks(y_low, y_high))
    body += "".join(svg.text(at(x, y_low)[0], BOTTOM + 16, f"{x:g}", "", "middle") for x in sorted(set(xs)))
    body += svg.text(LEFT, TOP - 7, words("res_y")) + svg.text(RIGHT, HEIGHT - 8, title, "", "end")
    ends = []
    for label, line in by_label.items():
        line = sorted(line, key=x_of)
        strong = line[0]["policy"] in STRONG and line[0]["plain"]
        body += svg.polyline([at(x_of(row), row["relative"]) for row in line], "c2" if strong and line[0]["policy"] == "macs" else "c1" if strong else "c3")
        for row in line:
            (low, high), x = row["relative_interval"], x_of(row)
            if strong:
                body += svg.line(at(x, low), at(x, high), "eq")
            mark = svg.diamond if row["policy"].startswith("macs") else svg.circle
            body += mark(at(x, row["relative"]), 4.5 if strong else 2.5, f"{label}, {title} {x:g}: {_percent(row['relative'])}, {_percent(low)} – {_percent(high)}")
        ends.append((at(x_of(line[-1]), line[-1]["relative"])[1] + 4, label, "st halo" if strong else "halo"))
    body += _stacked(ends)
    return svg.figure(WIDTH, HEIGHT, f"{words('res_y')}; {title}", body)


def _stacked(labels: Sequence[tuple[float, str, str]]) -> str:
    """Return the lines' names at the right, moved apart where they would meet."""
    placed: list[float] = []
    found = ""
    shift = max(0.0, TOP + LINE * len(labels) - BOTTOM)
    for y, label, kind in sorted(labels):
        y = max(y - shift, placed[-1] + LINE) if placed else y - shift
        placed.append(y)
        found += svg.text(RIGHT + 10, y, label, kind)
    return found
