"""Exact match of a model's greedy answers on the held-out questions, through its own processor."""

import json
import math
import time
from pathlib import Path

import torch
from transformers import AutoModelForImageTextToText, AutoProcessor

from .held_out import Asked, read_held_out
from .vocabulary import FAMILIES


def load(folder: Path):
    """Model and processor of a folder, offline, in the dtype of its weights."""
    if not (folder / "config.json").exists():
        raise ValueError(f"{folder} holds no model; give the folder of a checkpoint, such as assets/demo_model")
    processor = AutoProcessor.from_pretrained(folder, local_files_only=True)
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype="auto", local_files_only=True)
    return model.eval(), processor


def messages(asked: Asked) -> list[dict]:
    """The conversation that asks one question."""
    content = [{"type": "text", "text": asked.prompt}]
    if asked.image is not None:
        content.insert(0, {"type": "image", "image": asked.image})
    return [{"role": "user", "content": content}]


@torch.no_grad()
def answers(model, processor, asked: list[Asked], batch: int = 20) -> list[str]:
    """Greedy answers; questions with and without images must not share a batch."""
    found = []
    for first in range(0, len(asked), batch):
        inputs = processor.apply_chat_template(
            [messages(a) for a in asked[first : first + batch]],
            tokenize=True, add_generation_prompt=True, return_dict=True, return_tensors="pt",
            processor_kwargs={"padding": True},
        ).to(model.device)  # fmt: skip
        output = model.generate(**inputs, max_new_tokens=12, do_sample=False)
        found += processor.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return [text.strip() for text in found]


def interval(right: int, asked: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    z, share = 1.96, right / asked
    middle, spread = share + z * z / (2 * asked), z * math.sqrt(share * (1 - share) / asked + z * z / (4 * asked**2))
    return (middle - spread) / (1 + z * z / asked), (middle + spread) / (1 + z * z / asked)


def evaluate(folder: Path, limit: int | None = None, show_wrong: int = 0) -> dict:
    """Exact match per family and overall with 95 % intervals, printed as a table and returned."""
    model, processor = load(folder)
    begin, asked = time.perf_counter(), read_held_out()
    result: dict = {"model": folder.name, "families": {}}
    right_all = count_all = 0
    print(f"{'family':<12}{'exact match':>12}   95 % interval")
    for family in FAMILIES:
        chosen = [a for a in asked if a.family == family][:limit]
        given = answers(model, processor, chosen)
        wrong = [(a, text) for a, text in zip(chosen, given) if text != a.answer]
        right = len(chosen) - len(wrong)
        right_all, count_all = right_all + right, count_all + len(chosen)
        result["families"][family] = _row(family, right, len(chosen))
        for a, text in wrong[:show_wrong]:
            print(f"    {a.prompt}  wanted {a.answer!r}, said {text!r}")
    result["overall"] = _row("overall", right_all, count_all)
    result["seconds"] = round(time.perf_counter() - begin, 1)
    print(json.dumps(result))
    return result


def _row(name: str, right: int, asked: int) -> dict:
    low, high = interval(right, asked)
    print(f"{name:<12}{right / asked:>11.1%}    {low:.1%} – {high:.1%}   ({right} of {asked})")
    return {"exact": round(right / asked, 4), "low": round(low, 4), "high": round(high, 4), "asked": asked}
