"""What a study asks: the embedded held-out set, a fresh draw of it, a folder of pictures and questions, or a benchmark.

A folder holds ``questions.jsonl`` and pictures; a line is ``{"prompt": "…", "answers": ["…"]}`` and may have ``task``
(the column of the tables), ``image`` (a path inside the folder), ``metric`` (see ``metrics``) and ``options``. Answers
are needed where they are scored.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Sequence

from PIL import Image

from macs.demo.held_out import Asked, PER_FAMILY, draw_question, read_held_out
from macs.demo.vocabulary import FAMILIES
from macs.eval.benchmarks import BENCHMARKS, read_benchmark
from macs.eval.metrics import METRICS

DRAWS = (200_000, 1_000_000)  # seeds of fresh draws: between those of validation and of training, 10,000 for a family
SEEDS = (DRAWS[1] - DRAWS[0]) // (10_000 * len(FAMILIES))


@dataclass(frozen=True)
class Question:
    """One question with the answers that count as right."""

    task: str
    prompt: str
    answers: tuple[str, ...]
    image: Any = None  # a picture, a path, a file's bytes, or None
    metric: str = "exact"
    options: tuple[str, ...] = ()

    def picture(self) -> Image.Image | None:
        """Return the RGB picture or None; raises ValueError with one sentence if it cannot be read."""
        from macs.engine.intake import open_image

        if self.image is None or isinstance(self.image, Image.Image):
            return self.image
        return open_image(self.image).image

    def score(self, answer: str) -> float:
        """Return how right ``answer`` is, 0 to 1."""
        return METRICS[self.metric](answer, self.answers, self.options)


def read_tasks(names: Sequence[str], limit: int | None = None) -> list[Question]:
    """Return the questions of each named set, at most ``limit`` of each of its tasks.

    ``embedded`` is the held-out split, ``embedded:3`` the third of the fresh draws; ``textvqa:PATH`` and the like read
    a benchmark's files, and a path alone is a folder of ours. Raises ValueError on anything else.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}; use 1 or more questions per family.")
    return [question for name in names for question in first_of_each(_read(name, limit), limit)]


def _read(name: str, limit: int | None) -> list[Question]:
    kind, _, rest = name.partition(":")
    if kind == "embedded":
        return [_from_asked(a) for a in (read_held_out() if not rest else _drawn(rest, limit or PER_FAMILY))]
    if kind in BENCHMARKS and rest:
        return [Question(**row) for row in read_benchmark(kind, Path(rest))]
    if Path(name).is_dir():
        return read_folder(Path(name))
    known = ", ".join(["embedded", "embedded:SEED", "a folder with questions.jsonl", *(f"{b}:PATH" for b in BENCHMARKS)])
    raise ValueError(f"tasks is {name!r}; use {known}.")


def first_of_each(questions: Sequence[Question], limit: int | None) -> list[Question]:
    """Return at most ``limit`` questions of each task, task by task."""
    tasks = dict.fromkeys(q.task for q in questions)  # by task, because a batch holds questions of one
    return [q for task in tasks for q in [p for p in questions if p.task == task][:limit]]


def _from_asked(asked: Asked) -> Question:
    return Question(asked.family, asked.prompt, (asked.answer,), asked.image)


def _drawn(seed: str, per_family: int) -> list[Asked]:
    """Return a draw of the embedded model's world that no split has."""
    if not seed.isdigit() or not 1 <= int(seed) <= SEEDS:
        raise ValueError(f"The draw is {seed!r}; use embedded:1 to embedded:{SEEDS}.")
    found = []
    for number, family in enumerate(FAMILIES):
        at, kept = DRAWS[0] + ((int(seed) - 1) * len(FAMILIES) + number) * 10_000, 0
        while kept < per_family:
            drawn = draw_question(family, at)
            if drawn is not None:
                found.append(Asked(family, drawn[0].prompt, drawn[0].answer, drawn[1], at))
                kept += 1
            at += 1
    return found


def read_folder(folder: Path) -> list[Question]:
    """Return the questions of a folder; raises ValueError naming the line that cannot be used."""
    path = folder / "questions.jsonl"
    if not path.is_file():
        raise ValueError(f"{folder} holds no questions.jsonl; see README, 'The tables on your model'.")
    return [_from_line(folder, number, line) for number, line in enumerate(path.read_text("utf-8").splitlines(), 1) if line.strip()]


def _from_line(folder: Path, number: int, line: str) -> Question:
    where = f"Line {number} of questions.jsonl"
    try:
        row = json.loads(line)
        prompt, answers = row["prompt"], row.get("answers", [])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f'{where} is not JSON with a "prompt"; write {{"prompt": "…", "answers": ["…"]}}.') from None
    if not isinstance(prompt, str) or not isinstance(answers, list) or not all(isinstance(a, str) for a in answers):
        raise ValueError(f'{where} needs a text "prompt" and a list of texts "answers".')
    metric = row.get("metric", "exact")
    if metric not in METRICS:
        raise ValueError(f"{where} has the metric {metric!r}; use one of {', '.join(METRICS)}.")
    image = row.get("image")
    if image is not None:
        image = (folder / str(image)).resolve()
        if not image.is_relative_to(folder.resolve()) or not image.is_file():
            raise ValueError(f"{where} names the image {row['image']!r}, which is not in the folder.")
    return Question(str(row.get("task", folder.name)), prompt, tuple(answers), image, metric, tuple(map(str, row.get("options", ()))))


def digest(questions: Sequence[Question]) -> str:
    """Return a name of exactly these questions in this order: prompts, answers, metrics and pictures."""
    found = hashlib.sha256()
    for q in questions:
        found.update(json.dumps([q.task, q.prompt, q.answers, q.metric, q.options]).encode())
        picture = q.image
        if isinstance(picture, Image.Image):
            found.update(str(picture.size).encode() + picture.tobytes())
        elif picture is not None:
            found.update(picture if isinstance(picture, bytes) else picture.read_bytes())
    return found.hexdigest()
