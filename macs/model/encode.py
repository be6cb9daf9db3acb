"""From a prompt and a picture to the batch that the model takes: one user turn in the model's own chat template."""

from __future__ import annotations

import re
import threading
from typing import Any, Sequence

import numpy as np
from transformers.utils.chat_template_utils import _CONTROL_TOKEN_END, _CONTROL_TOKEN_START

from macs.model.layout import lay_out
from macs.model.load import Loaded
from macs.model.views import views_of

MAX_CHARACTERS = 200_000  # of a prompt, before any tokenizer sees it
_tokenizing = threading.Lock()  # tokenizers keep a switch for special tokens that a call sets, for every thread


def encode(loaded: Loaded, prompt: str, image: Any = None, *, frames: Sequence[Any] = (), fps: float = 1.0) -> Any:
    """Return the processor's batch, on the model's device, for ``prompt`` and an RGB picture, several, or None.

    ``frames`` are those of one video, ``fps`` of them a second, all of which the model sees. What a user types is text:
    control tokens and image placeholders in it are spelled out, never obeyed. Raises ValueError with one sentence if the
    prompt is empty or too long, the pictures make too many tokens, or the model takes no video.
    """
    pictures = list(image) if isinstance(image, (list, tuple)) else [] if image is None else [image]
    if frames and not loaded.anatomy.family.video:
        raise ValueError("This model takes no video here; give it pictures.")
    if frames and pictures and loaded.anatomy.family.frames_as_images:
        raise ValueError("This model takes pictures or a video here, not both; leave one of them out.")
    prompt = prompt.encode("utf-8", "replace").decode()  # a lone surrogate is no character
    if not prompt.strip():
        raise ValueError("Write a prompt first.")
    _check_length(loaded, prompt)
    content = [{"type": "image", "image": picture} for picture in pictures]
    content += [{"type": "video", "video": np.stack([np.asarray(frame) for frame in frames])}] if frames else []
    messages = [{"role": "user", "content": [*content, {"type": "text", "text": _spelled(loaded.processor, prompt)}]}]
    with _tokenizing:
        batch = loaded.processor.apply_chat_template(
            messages,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
            processor_kwargs={"sanitize_control_tokens": True} | (_as_they_are(len(frames), fps) if frames else {}),
        )
    batch.picture_sizes = [picture.size for picture in (*pictures, *frames)]  # what tiles and paddings are placed by
    _check_image(loaded, batch, expected=bool(pictures or frames))
    return batch.to(loaded.model.device)


def _spelled(processor: Any, prompt: str) -> str:
    """Return the prompt with every control token broken by a mark at which the tokenizer splits, and which it then leaves out.

    transformers' own ``sanitize_control_tokens`` of a chat leaves them whole until the tokenizer is called, and some
    processors count image placeholders before that.
    """
    tokenizer = processor.tokenizer
    prompt = prompt.replace(_CONTROL_TOKEN_START, "").replace(_CONTROL_TOKEN_END, "")  # a mark that was typed breaks nothing
    names = [name for name in tokenizer._get_control_tokens(processor.chat_template or tokenizer.chat_template or "") if len(name) > 1]
    control = re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))) or "(?!)")
    while control.search(prompt):  # what is left of a broken one may hold another
        prompt = control.sub(lambda found: found[0][0] + _CONTROL_TOKEN_START + found[0][1:], prompt)
    return prompt


def _as_they_are(count: int, fps: float) -> dict[str, Any]:
    """Return the options by which a processor takes every frame, each at its time."""
    return {"do_sample_frames": False, "video_metadata": [{"total_num_frames": count, "fps": fps, "frames_indices": list(range(count))}]}


def _check_length(loaded: Loaded, prompt: str) -> None:
    """Count before the template is rendered, so that a page of text costs one pass of the tokenizer, and a book none."""
    if len(prompt) > MAX_CHARACTERS:
        raise ValueError(f"This prompt has {len(prompt):,} characters; at most {MAX_CHARACTERS:,} are read. Use a shorter one.")
    with _tokenizing:
        count = len(loaded.processor.tokenizer(prompt, add_special_tokens=False, split_special_tokens=True)["input_ids"])
    if count > loaded.max_prompt_tokens:
        raise ValueError(f"This prompt makes {count} tokens; at most {loaded.max_prompt_tokens} run here. Use a shorter one.")


def _check_image(loaded: Loaded, batch: Any, *, expected: bool) -> None:
    ids_BS = batch["input_ids"].numpy()
    count = int(np.isin(ids_BS, loaded.anatomy.visual_tokens).sum())
    if count > loaded.max_visual_tokens:
        one = len(batch.picture_sizes) == 1
        what = "This image makes" if one else "These pictures make"
        raise ValueError(f"{what} {count} visual tokens; at most {loaded.max_visual_tokens} run here. Use {'a smaller one' if one else 'smaller ones'}.")
    if expected and not count:
        raise ValueError("This model's chat template has no place for what was given beside the prompt.")
    assert expected or not count, "the template places an image where there is one"
    views = views_of(batch, loaded.anatomy, loaded.processor, batch.picture_sizes)
    lay_out(ids_BS, np.ones(ids_BS.shape, bool), loaded.anatomy, views)  # views and spans agree
