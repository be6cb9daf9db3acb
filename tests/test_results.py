"""The results tab against the files that it is drawn from, and those files against themselves."""

import csv
import html
import re

import pytest

from macs.engine.base import DEMO_MODEL, RESULTS
from macs.eval.rows import row
from macs.eval.cells import Loads, Outcome
from macs.config import preset
from macs.model.calibration import model_identity
from macs.view import results
from macs.view.words import LANGUAGES, Words

TABLES = results.files()


def plain(markup: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "|", markup))


def test_every_table_of_the_study_ships_and_is_of_the_model_that_ships():
    assert set(TABLES) == set(results.ORDER)
    for name, table in TABLES.items():
        assert table["model_sha256"] == model_identity(DEMO_MODEL), f"{name} was measured on other weights; run study tables again"
        assert table["questions"] == 1200 and table["command"].startswith("python -m macs study tables") and {"date", "machine", "batch"} <= set(table)


@pytest.mark.parametrize("name", results.ORDER)
def test_a_table_holds_its_own_arithmetic(name):
    for r in TABLES[name]["rows"]:
        low, high = r["relative_interval"]
        assert low <= r["relative"] <= high and r["intervals"]["overall"][0] <= r["overall"] <= r["intervals"]["overall"][1]
        assert 0 <= r["dropped"] <= 1 and 0 <= r["rerouted"] <= 1 and r["expert_straggler"] >= r["straggler"] > 0
        if name in ("main", "gamma", "equal_time", "ablations", "ranks"):
            assert sum(r["families"].values()) / 6 == pytest.approx(r["overall"], abs=2e-4)  # two hundred questions in each
    with (RESULTS / "tables" / f"{name}.csv").open(encoding="utf-8") as file:
        assert [float(line["overall"]) for line in csv.DictReader(file)] == [r["overall"] for r in TABLES[name]["rows"]]


def test_equal_time_is_equal():
    for r in TABLES["equal_time"]["rows"]:
        assert r["straggler"] == pytest.approx(r["target"], rel=0.02), r["label"]
    assert {r["target"] for r in TABLES["equal_time"]["rows"]} == {1.0, 1.1, 1.25, 1.5}
    assert {"random_drop", "lowest_weight_drop", "macs_shuffled"} <= {r["policy"] for r in TABLES["equal_time"]["rows"]}


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("name", results.ORDER)
def test_the_tab_shows_every_row_and_where_it_is_from(name, lang):
    words, table = Words(lang), TABLES[name]
    seen = plain(results.section(name, table, words))
    for r in table["rows"]:
        for figure in (f"{100 * r['overall']:.1f}%", f"{r['straggler']:.2f}", f"{100 * r['relative_interval'][0]:.1f}%" if r["policy"] != "vanilla" else "100%"):
            assert figure in seen, (r["label"], figure)
    for source in (table["command"], table["date"][:10], table["machine"], table["model_sha256"][:12]):
        assert source in seen
    if lang == "zh":
        assert not re.search(r"\b(without|alone|priority|shuffled|picture|ranks)\b", seen.replace(table["command"], ""))


def test_a_figure_puts_each_policy_where_its_share_is():
    loads = Loads(10, 10, 20, 0, 0)
    vanilla = Outcome((1.0,) * 10, loads, 4, 16)
    rows = [row("MACS", preset("macs"), Outcome((1.0,) * k + (0.0,) * (10 - k), loads, 4, 16), vanilla, ["a"] * 10, target=x) for x, k in ((1.0, 5), (2.0, 10))]
    drawn = results._over_target(rows, Words("en"))
    points = [tuple(map(float, p.split(","))) for p in re.search(r'class="c2" points="([^"]+)"', drawn)[1].split()]
    assert points[0][0] == results.LEFT and points[1] == (results.RIGHT, results.TOP)
    assert "MACS, fullest rank ÷ vanilla&#x27;s mean 1: 50.0%" in drawn
