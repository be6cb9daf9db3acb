"""Questions that need no image: arithmetic, order, opposites, categories, colour mixing, spelling."""

import random

from .vocabulary import (
    CATEGORY_OF,
    DAYS,
    HOME,
    LETTERS,
    MADE_FOR,
    MIX,
    MONTHS,
    NUMBER_WORDS,
    OBJECT_NAMES,
    OPPOSITE,
    SOUND,
    TYPICAL_COLOUR,
    article,
    plural,
)


def ask_plus(rng: random.Random) -> tuple[str, str]:
    """A sum of two numbers up to 20."""
    a, b = rng.randint(0, 20), rng.randint(0, 12)
    return rng.choice(("What is {} plus {}?", "{}+{}=", "Add {} and {}.")).format(a, b), str(a + b)


def ask_minus(rng: random.Random) -> tuple[str, str]:
    """A difference that is not negative."""
    a = rng.randint(0, 20)
    b = rng.randint(0, min(a, 12))
    return rng.choice(("What is {} minus {}?", "{}-{}=")).format(a, b), str(a - b)


def ask_times(rng: random.Random) -> tuple[str, str]:
    """A product from the small multiplication table."""
    a, b = rng.randint(1, 9), rng.randint(1, 9)
    return rng.choice(("What is {} times {}?", "{}*{}=")).format(a, b), str(a * b)


def ask_compare(rng: random.Random) -> tuple[str, str]:
    """The larger or smaller of two numbers."""
    a, b = rng.sample(range(100), 2)
    if rng.random() < 0.5:
        return f"Which number is larger, {a} or {b}?", str(max(a, b))
    return f"Which number is smaller, {a} or {b}?", str(min(a, b))


def ask_letter_order(rng: random.Random) -> tuple[str, str]:
    """The letter after or before a letter."""
    i = rng.randrange(1, 25)
    if rng.random() < 0.6:
        return rng.choice(("Which letter comes after {}?", "What follows {} in the alphabet?")).format(
            LETTERS[i]
        ), LETTERS[i + 1]
    return f"Which letter comes before {LETTERS[i]}?", LETTERS[i - 1]


def ask_calendar(rng: random.Random) -> tuple[str, str]:
    """The day or month after or before another."""
    names = rng.choice((DAYS, MONTHS))
    what = "day" if names is DAYS else "month"
    i = rng.randrange(len(names))
    if rng.random() < 0.6:
        return f"Which {what} comes after {names[i]}?", names[(i + 1) % len(names)]
    return f"Which {what} comes before {names[i]}?", names[i - 1]


def ask_opposite(rng: random.Random) -> tuple[str, str]:
    """The opposite of a word."""
    word = rng.choice(sorted(OPPOSITE))
    return rng.choice(("What is the opposite of {}?", "Say the opposite of {}.")).format(word), OPPOSITE[word]


def ask_category(rng: random.Random) -> tuple[str, str]:
    """The group of an everyday object."""
    name = rng.choice(OBJECT_NAMES)
    return rng.choice(("What kind of thing is {}?", "To which group does {} belong?")).format(
        article(name)
    ), CATEGORY_OF[name]


def ask_about(rng: random.Random) -> tuple[str, str]:
    """A sound, a home, a place of use or a typical colour."""
    table, forms = rng.choice((
        (SOUND, ("What does {} say?", "Which sound does {} make?")),
        (HOME, ("Where does {} live?", "What is the home of {}?")),
        (MADE_FOR, ("Where does {} move?",)),
        (TYPICAL_COLOUR, ("Which colour has {}?", "What is the colour of {}?")),
    ))  # fmt: skip
    name = rng.choice(sorted(table))
    return rng.choice(forms).format(article(name)), table[name]


def ask_mix_words(rng: random.Random) -> tuple[str, str]:
    """The mixture of two colours."""
    pair = rng.choice(sorted(sorted(p) for p in MIX))
    a, b = rng.sample(pair, 2)
    return rng.choice(("Which colour do {} and {} mix to?", "What do you get from {} and {}?")).format(a, b), MIX[
        frozenset(pair)
    ]


def ask_number_word(rng: random.Random) -> tuple[str, str]:
    """A number as a word or a word as a number."""
    n = rng.randrange(len(NUMBER_WORDS))
    if rng.random() < 0.5:
        return f"Write {n} as a word.", NUMBER_WORDS[n]
    return f"Write {NUMBER_WORDS[n]} as a number.", str(n)


def ask_sequence(rng: random.Random) -> tuple[str, str]:
    """The next number of an even row."""
    step, start = rng.choice((1, 2, 3, 5, 10)), rng.randint(1, 12)
    row = [start + step * i for i in range(4)]
    return f"What comes next: {row[0]}, {row[1]}, {row[2]}?", str(row[3])


def ask_spelling(rng: random.Random) -> tuple[str, str]:
    """Repeat, reverse, or take an end of a short string of letters."""
    text = "".join(rng.choices(LETTERS, k=rng.randint(2, 4)))
    style = rng.randrange(4)
    if style == 0:
        return f"Repeat {text}.", text
    if style == 1:
        return f"Write {text} backwards.", text[::-1]
    if style == 2:
        return f"What is the first letter of {text}?", text[0]
    return f"What is the last letter of {text}?", text[-1]


def ask_plural(rng: random.Random) -> tuple[str, str]:
    """The plural of a noun."""
    name = rng.choice([n for n in OBJECT_NAMES if n not in ("fish", "grapes")])
    return f"What is the plural of {name}?", plural(name)


TEXT_QUESTIONS = (ask_plus, ask_plus, ask_minus, ask_times, ask_compare, ask_letter_order, ask_calendar, ask_opposite,
                  ask_category, ask_about, ask_mix_words, ask_number_word, ask_sequence, ask_spelling, ask_plural)  # fmt: skip


def ask_text(rng: random.Random) -> tuple[str, str]:
    """One question without an image and its answer."""
    return rng.choice(TEXT_QUESTIONS)(rng)
