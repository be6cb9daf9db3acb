"""Public benchmarks as their publishers lay them out: files on disk, or a folder that the ``datasets`` library reads.

Every reader yields the fields of ``tasks.Question``. Prompts end as the benchmarks' own evaluations ask.
"""

from __future__ import annotations

import ast
import base64
import csv
import json
import re
import sys
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping

Row = Mapping[str, Any]
WORD = "\nAnswer the question using a single word or phrase."
LETTER = "\nAnswer with the option's letter from the given choices directly."


def read_benchmark(name: str, path: Path) -> Iterator[dict[str, Any]]:
    """Yield the questions of benchmark ``name`` at ``path``; raises ValueError if the files are not as published."""
    if not path.exists():
        raise ValueError(f"{name} is looked for at {path}, which does not exist; give its file or folder.")
    read = BENCHMARKS[name]
    for number, row in enumerate(_rows(name, path), 1):
        try:
            yield read(row, path)
        except (KeyError, TypeError, AttributeError, SyntaxError, ValueError, OSError) as error:
            raise ValueError(f"Question {number} of {path.name} is not as {name} publishes it: {error!r}.") from None


def _rows(name: str, path: Path) -> Iterator[Row]:
    if path.suffix == ".tsv":
        csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # a picture is one field
        with path.open(encoding="utf-8", newline="") as file:
            yield from csv.DictReader(file, delimiter="\t")
    elif path.suffix == ".json":
        found = json.loads(path.read_text("utf-8"))
        yield from found["data"] if isinstance(found, dict) else found
    elif name == "mme" and not any(path.rglob("*.parquet")):
        yield from _mme_folder(path)
    else:
        yield from _dataset(path)


def _dataset(path: Path) -> Iterator[Row]:
    try:
        import datasets
    except ImportError:
        raise ValueError("This benchmark is read by the datasets library; run: pip install datasets.") from None
    files = sorted(map(str, path.rglob("*.parquet"))) if path.is_dir() else [str(path)]
    if not files:
        raise ValueError(f"{path} holds no parquet files; give the benchmark's file or folder.")
    table = datasets.load_dataset("parquet", data_files=files, split="train")
    for column, feature in table.features.items():
        if isinstance(feature, datasets.Image):
            table = table.cast_column(column, datasets.Image(decode=False))
    yield from table


def _picture(value: Any, *beside: Path) -> Any:
    """Return what ``Question.image`` takes: the bytes of a base64 text or of a dataset's picture, or a file's path."""
    if isinstance(value, Mapping):
        return value["bytes"] if value.get("bytes") else Path(value["path"])
    if isinstance(value, bytes):
        return value
    for folder in beside:
        if len(value) < 256 and (folder / value).is_file():
            return folder / value
    if len(value) < 256:
        raise ValueError(f"the picture {value!r} is not beside the questions")
    return base64.b64decode(value, validate=True)


def _textvqa(row: Row, path: Path) -> dict[str, Any]:
    folder = path.parent
    image = row.get("image") or f"{row['image_id']}.jpg"
    image = _picture(image, folder / "train_images", folder / "test_images", folder)
    answers = row.get("answers", row.get("answer"))
    return _question("textvqa", row["question"].strip().capitalize() + WORD, _list(answers), image, "vqa")


def _chartqa(row: Row, path: Path) -> dict[str, Any]:
    image = _picture(row.get("image", row.get("imgname")), path.parent / "png", path.parent)
    answers = _list(row.get("label", row.get("answer")))
    half = row.get("human_or_machine", row.get("split"))
    human = "human" in path.name if half is None else half in (0, "human", "test_human")
    return _question(f"chartqa {'human' if human else 'augmented'}", row.get("query", row.get("question")) + WORD, answers, image, "relaxed")


def _mmstar(row: Row, path: Path) -> dict[str, Any]:
    options = tuple(text.strip().rstrip(",") for _, text in re.findall(r"\b([A-D])[:.]\s*(.*?)(?=,?\s*\b[B-D][:.]\s|$)", row["question"], re.S))
    options = options if row.get("A") is None else tuple(row[x] for x in "ABCD" if row.get(x))
    listed = "" if row.get("A") is None else "\n" + "\n".join(f"{x}. {text}" for x, text in zip("ABCD", options))
    prompt = row["question"] + listed + LETTER
    return _question(f"mmstar {row['category']}", prompt, [row["answer"]], _picture(row["image"]), "option", options)


def _mmbench(row: Row, path: Path) -> dict[str, Any]:
    options = tuple(str(row[x]) for x in "ABCD" if row.get(x) not in (None, "", "nan"))
    hint = f"{row['hint']}\n" if row.get("hint") not in (None, "", "nan") else ""
    listed = "\n".join(f"{x}. {text}" for x, text in zip("ABCD", options))
    task = row.get("l2-category") or row.get("L2-category") or row["category"]
    return _question(f"mmbench {task}", f"{hint}{row['question']}\n{listed}{LETTER}", [row["answer"]], _picture(row["image"]), "option", options)


def _mme(row: Row, path: Path) -> dict[str, Any]:
    return _question(f"mme {row['category']}", row["question"], [row["answer"]], _picture(row["image"], path), "yes_no")


def _mme_folder(path: Path) -> Iterator[Row]:
    """Yield rows of the folder layout: for each category pictures and a text file of two lines, question tab answer."""
    for text in sorted(path.rglob("*.txt")):
        beside = [text.with_suffix(end) for end in (".jpg", ".png", ".jpeg")]
        beside += [text.parent.parent / "images" / other.name for other in beside]
        image = next((p for p in beside if p.is_file()), None)
        if image is None:
            continue  # a note, no question
        category = text.parent.parent.name if text.parent.name == "questions_answers_YN" else text.parent.name
        for line in text.read_text("utf-8").splitlines():
            question, answer = line.split("\t")
            yield {"category": category, "question": question, "answer": answer, "image": {"path": image}}


def _realworldqa(row: Row, path: Path) -> dict[str, Any]:
    letters = re.findall(r"^\s*([A-J])[.)]\s*(.+)$", row["question"], re.M)
    metric = "option" if letters and row["answer"].strip().upper() in {x for x, _ in letters} else "exact"
    return _question("realworldqa", row["question"], [row["answer"]], _picture(row["image"]), metric, tuple(text.strip() for _, text in letters))


def _list(value: Any) -> list[str]:
    """Return answers as a list; a tab-separated file holds a list as its text."""
    if isinstance(value, str) and value.startswith("["):
        value = ast.literal_eval(value)
    return [str(x) for x in value] if isinstance(value, (list, tuple)) else [str(value)]


def _question(task: str, prompt: str, answers: list[str], image: Any, metric: str, options: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"task": task, "prompt": prompt, "answers": tuple(answers), "image": image, "metric": metric, "options": options}


BENCHMARKS: dict[str, Callable[[Row, Path], dict[str, Any]]] = {
    "textvqa": _textvqa,
    "chartqa": _chartqa,
    "mmstar": _mmstar,
    "mmbench": _mmbench,
    "mme": _mme,
    "realworldqa": _realworldqa,
}
