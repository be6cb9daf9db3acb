"""How an answer is scored: the official metrics of the benchmarks, each from 0 to 1 for one answer."""

from __future__ import annotations

import re
from typing import Callable, Sequence

_ARTICLES = {"a", "an", "the"}
_NUMBERS = {word: str(n) for n, word in enumerate("zero one two three four five six seven eight nine ten".split())} | {"none": "0"}
_PUNCTUATION = ";/[]\"{}()=+\\_-><@`!"
_CONTRACTED = {
    word.replace("'", ""): word
    for word in (
        "ain't aren't can't could've couldn't didn't doesn't don't hadn't hasn't haven't he'd he's how'd how'll how's I'm I've isn't it'd it'll "
        "ma'am might've mightn't must've mustn't needn't not've o'clock oughtn't shan't she'd she's should've shouldn't somebody's someone's "
        "something's that'd that's there'd there're there's they'd they'll they're they've wasn't we've weren't what'll what're what's what've "
        "when's where'd where's where've who'd who'll who's who've why'll why're why's won't would've wouldn't y'all you'd you'll you're you've"
    ).split()
}


def exact(answer: str, wanted: Sequence[str], options: Sequence[str] = ()) -> float:
    """Return 1 if ``answer`` is one of ``wanted``, letter case and outer spaces aside."""
    return float(answer.strip().lower() in {text.strip().lower() for text in wanted})


def vqa(answer: str, wanted: Sequence[str], options: Sequence[str] = ()) -> float:
    """Return VQA's accuracy, as TextVQA uses it: mean over leaving out each human answer of min(1, matches ÷ 3)."""
    answer, wanted = vqa_form(answer), [vqa_form(text) for text in wanted]
    if len(wanted) == 1:
        return float(answer == wanted[0])
    total = sum(text == answer for text in wanted)
    return sum(min(1.0, (total - (text == answer)) / 3) for text in wanted) / len(wanted)


def relaxed(answer: str, wanted: Sequence[str], options: Sequence[str] = ()) -> float:
    """Return ChartQA's relaxed accuracy: a number may be off by 5 % of the wanted one, anything else must be equal."""
    return max(_relaxed(answer.strip(), text.strip()) for text in wanted)


def option(answer: str, wanted: Sequence[str], options: Sequence[str] = ()) -> float:
    """Return 1 if ``answer`` names the wanted option: its letter, alone or leading, or exactly one option's text."""
    return float(chosen_option(answer, options) == wanted[0].strip().upper())


def yes_no(answer: str, wanted: Sequence[str], options: Sequence[str] = ()) -> float:
    """Return 1 if the first of the words yes and no in ``answer`` is the wanted one, as MME counts it."""
    found = re.search(r"\b(yes|no)\b", answer.lower())
    return float(found is not None and found[1] == wanted[0].strip().lower())


METRICS: dict[str, Callable[..., float]] = {"exact": exact, "vqa": vqa, "relaxed": relaxed, "option": option, "yes_no": yes_no}


def vqa_form(text: str) -> str:
    """Return an answer as TextVQA's evaluation compares it: no articles or punctuation, digits for number words."""
    text = " ".join(text.lower().replace(",", "").replace("?", "").replace("'s", " 's").split())
    bare = text
    for mark in _PUNCTUATION:
        beside_space = f"{mark} " in text or f" {mark}" in text
        bare = bare.replace(mark, "" if beside_space else " ")
    bare = re.sub(r"\.(?!\d)", "", bare)  # a decimal point stays
    words = (_NUMBERS.get(word, word) for word in bare.split())
    return " ".join(_CONTRACTED.get(word, word) for word in words if word not in _ARTICLES)


def _relaxed(answer: str, wanted: str) -> float:
    number, target = _number(answer), _number(wanted)
    if number is not None and target:
        return float(abs(number - target) <= 0.05 * abs(target) + 1e-12)
    return float(answer.lower() == wanted.lower())


def _number(text: str) -> float | None:
    try:
        return float(text.rstrip("%").replace(",", "")) / (100 if text.endswith("%") else 1)
    except ValueError:
        return None


def chosen_option(answer: str, options: Sequence[str]) -> str | None:
    """Return the letter of the option that ``answer`` names, None if it names none or several."""
    answer = answer.strip()
    letters = "ABCDEFGHIJ"[: len(options) or 10]
    lead = re.match(rf"\(?([{letters}])(?:[).:,\s]|$)", answer, re.ASCII)
    if lead and not (lead[1] == "A" and re.match(r"A\s+[a-z]", answer)):  # "A dog" names no option
        return lead[1]
    named = re.findall(rf"\b(?:answer|option|choice)\b(?:\s+is)?[:\s]*\(?([{letters}])\b", answer, re.IGNORECASE)
    if len({letter.upper() for letter in named}) == 1:
        return named[0].upper()
    texts = [letter for letter, text in zip(letters, options) if text and text.strip().lower() in answer.lower()]
    return texts[0] if len(texts) == 1 else None
