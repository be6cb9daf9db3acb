"""Packs one image and its questions into one sequence in which every question sees the image and nothing else.

Layout of a sequence: the shared start (chat tokens and the image's tokens, P long), then slots of SLOT tokens that hold
one to four branches each. A branch (question and answer) attends to the shared start and to itself, at the positions
that it would have if it were asked alone: training is exactly single-question inference, a dozen questions per image.
"""

import random
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image

from .build import MERGE, PATCH
from .canvas import CELL
from .crowds import draw_crowd
from .questions import Question, ask_scene, ask_without_image
from .scenes import FULL_GRIDS, KINDS, SMALL_GRIDS, Scene, draw_scene
from .vocabulary import DENSE, FAMILIES

HELD_OUT, VALIDATION, TRAINING = (0, 100_000), (100_000, 200_000), (1_000_000, 2**40)
"""Seed ranges [first, last) of the three splits; they never meet."""

IGNORED = -100
SLOT = 48


@dataclass(frozen=True)
class Mix:
    """What a batch is made of: images, packs of questions without an image, slots of questions each, and scene size."""

    images: int = 24
    text_packs: int = 2
    slots: int = 4
    small_share: float = 1.0
    kinds: tuple[float, float, float] = (0.36, 0.37, 0.27)


@dataclass
class Packed:
    """One sequence: token ids, (t, h, w) positions, answer labels, branch (0 shared, −1 pad), and its questions."""

    ids: list[int]
    positions: list[tuple[int, int, int]]
    labels: list[int]
    branch: list[int]
    questions: list[Question]


def patches_of(image: Image.Image, grid: tuple[int, int]) -> np.ndarray:
    """Pixel values in the image processor's patch order, float32 [4·rows·columns, 3·2·8·8], from an image of any size."""
    size = (grid[1] * CELL, grid[0] * CELL)
    if image.size != size:
        image = image.resize(size, Image.Resampling.BICUBIC)
    pixels = np.asarray(image, np.float32) / 127.5 - 1.0
    rows, columns = grid
    blocks = pixels.reshape(rows, MERGE, PATCH, columns, MERGE, PATCH, 3).transpose(0, 3, 1, 4, 6, 2, 5)
    flat = blocks.reshape(-1, 3, 1, PATCH, PATCH)
    return np.repeat(flat, 2, axis=2).reshape(len(flat), -1)


class Packer:
    """Turns questions into packed sequences with one tokenizer."""

    def __init__(self, tokenizer):
        self.encode = lambda text: tokenizer(text, add_special_tokens=False).input_ids
        self.start = self.encode("<|im_start|>user\n")
        self.vision_start, self.vision_end, self.image_pad = self.encode("<|vision_start|><|vision_end|><|image_pad|>")
        self.turn = self.encode("<|im_end|>\n<|im_start|>assistant\n")
        self.end = self.encode("<|im_end|>")
        self.pad = tokenizer.pad_token_id

    def shared_length(self, cells: int) -> int:
        """Tokens before the questions for an image of `cells` visual tokens."""
        return len(self.start) + cells + 2

    def pack(self, questions: list[Question], grid: tuple[int, int] | None, shared: int, slots: int) -> Packed:
        """One sequence of `shared` + `slots`·SLOT tokens; questions that find no slot with room are left out."""
        ids = list(self.start)
        positions = [(i, i, i) for i in range(len(ids))]
        if grid is not None:
            first = len(ids) + 1
            ids += [self.vision_start] + [self.image_pad] * (grid[0] * grid[1]) + [self.vision_end]
            positions.append((first - 1,) * 3)
            positions += [(first, first + row, first + column) for row in range(grid[0]) for column in range(grid[1])]
            positions.append((first + max(grid),) * 3)
        next_position, missing = positions[-1][0] + 1, shared - len(ids)
        branch = [-1] * missing + [0] * len(ids)
        ids = [self.pad] * missing + ids
        positions = [(0, 0, 0)] * missing + positions
        labels = [IGNORED] * shared
        rooms: list[list[tuple]] = [[] for _ in range(slots)]
        kept: list[Question] = []
        for question in questions:
            asked, answer = self.encode(question.prompt) + self.turn, self.encode(question.answer) + self.end
            room = next((r for r in rooms if len(r) + len(asked) + len(answer) <= SLOT), None)
            if room is None:
                continue
            kept.append(question)
            for i, token in enumerate(asked + answer):
                label = token if i >= len(asked) else IGNORED
                room.append((token, next_position + i, label, len(kept)))
        for room in rooms:
            for token, position, label, number in room + [(self.pad, 0, IGNORED, -1)] * (SLOT - len(room)):
                ids.append(token), positions.append((position,) * 3), labels.append(label), branch.append(number)
        return Packed(ids, positions, labels, branch, kept)

    def collate(self, packs: list[Packed], scenes: list[Scene], shared: int) -> dict:
        """Tensors of a batch; `answer_*` describe, in order, every token position that predicts an answer token."""
        ids, labels, branch = (torch.tensor([getattr(p, name) for p in packs]) for name in ("ids", "labels", "branch"))
        positions = torch.tensor([p.positions for p in packs]).permute(2, 0, 1)
        length = ids.shape[1]
        local = branch[:, shared:].reshape(len(packs), (length - shared) // SLOT, SLOT)
        causal = torch.ones(SLOT, SLOT, dtype=torch.bool).tril()
        row, column = (labels[:, 1:] != IGNORED).nonzero(as_tuple=True)
        base = torch.tensor(np.cumsum([0] + [len(p.questions) for p in packs])[:-1])
        return {
            "input_ids": ids,
            "position_ids": positions,
            "attention_mask": (local[..., :, None] == local[..., None, :]) & causal,
            "shared_valid": branch[:, :shared] == 0,
            "valid": branch >= 0,
            **image_tensors(scenes),
            "answer_at": row * length + column,
            "answer_id": labels[row, column + 1],
            "answer_question": base[row] + branch[row, column + 1] - 1,
            "family": torch.tensor([FAMILIES.index(q.family) for p in packs for q in p.questions]),
        }


def image_tensors(scenes: list[Scene]) -> dict:
    """Pixels, grids and dense labels of scenes of one area."""
    return {
        "pixel_values": torch.from_numpy(np.concatenate([patches_of(s.image, s.grid) for s in scenes])),
        "image_grid_thw": torch.tensor([[1, s.grid[0] * MERGE, s.grid[1] * MERGE] for s in scenes]),
        "dense": torch.from_numpy(np.concatenate([s.labels.reshape(len(DENSE), -1) for s in scenes], axis=1)),
    }


def draw_lesson(packer: Packer, mix: Mix, step: int, part: int = 0, parts: int = 1) -> dict:
    """Images with dense labels and no questions: crowds, charts and the other scenes."""
    rng = random.Random(f"lesson {step}")
    grid = rng.choice(SMALL_GRIDS)
    rng.seed(f"lesson {step} {part}")
    scenes = []
    for slot in range(mix.images):
        seed, turned = TRAINING[0] + (step * parts + part) * mix.images + slot, rng.choice((grid, grid[::-1]))
        if rng.random() < 0.7:
            scenes.append(draw_crowd(seed, turned))
        else:
            scenes.append(draw_scene(seed, rng.choices(KINDS, (0.3, 0.2, 0.5))[0], "small", turned))
    shared = packer.shared_length(grid[0] * grid[1])
    return packer.collate([packer.pack([], s.grid, shared, 0) for s in scenes], scenes, shared)


def draw_batch(packer: Packer, mix: Mix, seeds: tuple[int, int], step: int, part: int = 0, parts: int = 1) -> dict:
    """One of the `parts` of batch number `step` of a split; all parts have images of one area."""
    rng = random.Random(f"batch {seeds} {step}")
    scenes, packs = [], []
    size = "small" if rng.random() < mix.small_share else "full"
    grid = rng.choice(SMALL_GRIDS if size == "small" else FULL_GRIDS)  # one area a batch: images need no padding
    shared, count = packer.shared_length(grid[0] * grid[1]), mix.slots * SLOT // 14
    index = step * parts + part
    rng.seed(f"batch {seeds} {step} {part}")
    for slot in range(mix.images):
        seed = seeds[0] + (index * mix.images + slot) % (seeds[1] - seeds[0])
        scene = draw_scene(seed, rng.choices(KINDS, mix.kinds)[0], size, rng.choice((grid, grid[::-1])))
        questions = ask_scene(rng, scene, count - 1)
        if rng.random() < 0.5:
            questions = ask_without_image(rng, 1) + questions
        scenes.append(scene)
        packs.append(packer.pack(questions, scene.grid, shared, mix.slots))
    for _ in range(mix.text_packs):
        packs.append(packer.pack(ask_without_image(rng, count), None, shared, mix.slots))
    return packer.collate(packs, scenes, shared)


class Batches(torch.utils.data.IterableDataset):
    """Endless parts of the training split's batches from batch `first` on; before batch `lessons`, lessons."""

    def __init__(self, packer: Packer, mix: Mix, first: int, lessons: int, part: int = 0, parts: int = 1):
        self.packer, self.mix, self.first, self.lessons = packer, mix, first, lessons
        self.part, self.parts = part, parts

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        step, stride = (self.first, 1) if worker is None else (self.first + worker.id, worker.num_workers)
        torch.set_num_threads(1)
        while True:
            if step < self.lessons:
                yield draw_lesson(self.packer, self.mix, step, self.part, self.parts)
            else:
                yield draw_batch(self.packer, self.mix, TRAINING, step, self.part, self.parts)
            step += stride
