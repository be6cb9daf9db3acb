"""Questions about charts: values, extremes, comparisons, sums, counts."""

import random

from .vocabulary import COLOURS


def _part(chart) -> str:
    return {"bars": "bar", "rows": "bar", "line": "point", "pie": "slice"}[chart.style]


def _entry(rng: random.Random, chart, i: int) -> str:
    """A phrase for entry i: by colour or by letter."""
    if chart.has_letters and (not chart.has_colours or rng.random() < 0.5):
        return chart.letters[i]
    return f"the {chart.colours[i]} {_part(chart)}"


def _short(chart, i: int, by_letter: bool) -> str:
    return chart.letters[i] if by_letter else chart.colours[i]


def ask_value(rng: random.Random, scene) -> tuple[str, str] | None:
    """The value of one bar or point."""
    chart = scene.chart
    if chart.style == "pie":
        return None
    i = rng.randrange(len(chart.values))
    forms = ("What is the value of {}?", "Which value has {}?", "How much is {}?")
    return rng.choice(forms).format(_entry(rng, chart, i)), str(chart.values[i])


def ask_chart_extreme(rng: random.Random, scene) -> tuple[str, str]:
    """The entry with the highest or lowest value, by its colour or letter."""
    chart = scene.chart
    word, best = rng.choice((("highest", max), ("lowest", min)))
    by_letter = chart.has_letters and (not chart.has_colours or rng.random() < 0.5)
    i = chart.values.index(best(chart.values))
    if chart.style == "pie":
        word = "biggest" if word == "highest" else "smallest"
    form = rng.choice(("Which {} has the {} {}?", "Tell me the {} of the {} {}."))
    return form.format("letter" if by_letter else "colour", word, _part(chart)), _short(chart, i, by_letter)


def ask_chart_value_extreme(rng: random.Random, scene) -> tuple[str, str] | None:
    """The highest or lowest value."""
    chart = scene.chart
    if chart.style == "pie":
        return None
    word, best = rng.choice((("highest", max), ("lowest", min)))
    return rng.choice(("What is the {} value?", "Which value is the {}?")).format(word), str(best(chart.values))


def ask_higher(rng: random.Random, scene) -> tuple[str, str]:
    """Which of two entries is higher (or bigger)."""
    chart = scene.chart
    by_letter = chart.has_letters and (not chart.has_colours or rng.random() < 0.5)
    i, j = rng.sample(range(len(chart.values)), 2)
    word = "bigger" if chart.style == "pie" else "higher"
    best = i if chart.values[i] > chart.values[j] else j
    names = [_short(chart, k, by_letter) for k in (i, j)]
    return f"Which is {word}, {names[0]} or {names[1]}?", _short(chart, best, by_letter)


def ask_sum(rng: random.Random, scene) -> tuple[str, str] | None:
    """The sum or the difference of two values."""
    chart = scene.chart
    if chart.style == "pie":
        return None
    i, j = rng.sample(range(len(chart.values)), 2)
    a, b = _entry(rng, chart, i), _entry(rng, chart, j)
    if rng.random() < 0.5:
        return f"What is the sum of {a} and {b}?", str(chart.values[i] + chart.values[j])
    return f"What is the difference of {a} and {b}?", str(abs(chart.values[i] - chart.values[j]))


def ask_parts(rng: random.Random, scene) -> tuple[str, str]:
    """How many bars, points or slices there are, in all or above a value."""
    chart = scene.chart
    part = _part(chart) + "s"
    if chart.style != "pie" and rng.random() < 0.4:
        limit = rng.randint(3, 7)
        return f"How many {part} are above {limit}?", str(sum(v > limit for v in chart.values))
    return rng.choice(("How many {} are there?", "Count the {}.")).format(part), str(len(chart.values))


def ask_bar_there(rng: random.Random, scene) -> tuple[str, str] | None:
    """Whether there is a bar or slice of a colour."""
    chart = scene.chart
    if not chart.has_colours:
        return None
    absent = [c for c in COLOURS if c not in chart.colours]
    yes = rng.random() < 0.5 or not absent
    colour = rng.choice(chart.colours if yes else absent)
    return f"Is there {'an' if colour[0] in 'aeiou' else 'a'} {colour} {_part(chart)}?", "yes" if yes else "no"


def ask_style(rng: random.Random, scene) -> tuple[str, str]:
    """What kind of chart it is."""
    kind = {"bars": "bar chart", "rows": "bar chart", "line": "line chart", "pie": "pie chart"}[scene.chart.style]
    return "What kind of chart is this?", kind


CHART_QUESTIONS = (
    (3.0, "charts", ask_value), (1.5, "charts", ask_chart_extreme), (0.8, "charts", ask_chart_value_extreme),
    (1.2, "charts", ask_higher), (1.2, "charts", ask_sum), (0.8, "charts", ask_parts),
    (0.2, "presence", ask_bar_there), (0.15, "charts", ask_style),
)  # fmt: skip
