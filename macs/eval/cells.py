"""One cell of a table: every question answered under one policy, with the loads of its prefills. Measured once, then read back."""

from __future__ import annotations

import copy
import hashlib
import json
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, Sequence

import torch

from macs.config import Policy
from macs.eval.tasks import Question, digest
from macs.trace import DROPPED, REROUTED, Trace

REMEMBERED = 2 * 2**30  # bytes of encoded batches and pictures' features kept between cells
ANSWER_TOKENS = 24


@dataclass(frozen=True)
class Loads:
    """What the prefills of a cell executed: sums over batches and layers, so that a long batch counts for more."""

    fullest_rank: int = 0  # tokens on the fullest rank
    fullest_expert: int = 0
    pairs: int = 0  # as the router made them
    dropped: int = 0
    rerouted: int = 0

    def plus(self, trace: Trace, ep_size: int) -> Loads:
        """Return the sums with one prefill added."""
        layers = trace.layers
        return Loads(
            self.fullest_rank + sum(int(layer.rank_tokens(ep_size).max()) for layer in layers),
            self.fullest_expert + sum(int(layer.decision.tokens_after_N.max()) for layer in layers),
            self.pairs + sum(layer.pairs for layer in layers),
            self.dropped + sum(layer.count(DROPPED) for layer in layers),
            self.rerouted + sum(layer.count(REROUTED) for layer in layers),
        )


@dataclass(frozen=True)
class Outcome:
    """A measured cell: one score per question in the order asked, and the loads."""

    scores: tuple[float, ...]
    loads: Loads
    ep_size: int
    num_experts: int
    seconds: float = 0.0  # that it took to measure

    @property
    def straggler(self) -> float:
        """Fullest rank's tokens ÷ the mean rank's under vanilla, over all prefills: what modelled time is proportional to."""
        return self.loads.fullest_rank * self.ep_size / max(self.loads.pairs, 1)

    @property
    def expert_straggler(self) -> float:
        """The same of experts (the paper's eq. 2)."""
        return self.loads.fullest_expert * self.num_experts / max(self.loads.pairs, 1)

    dropped = property(lambda self: self.loads.dropped / max(self.loads.pairs, 1))
    rerouted = property(lambda self: self.loads.rerouted / max(self.loads.pairs, 1))


@dataclass
class Bench:
    """A model, what it is asked in batches, and the cells measured so far."""

    loaded: Any
    modality: Mapping[int, Any] | None  # groups of the calibration, by layer
    batches: list[list[Question]]
    store: Store
    identity: str  # of the weights
    max_new_tokens: int = ANSWER_TOKENS
    margin: float | None = None  # of the groups, where it is not the calibration's own
    on_batch: Callable[[int, int], None] = lambda done, of: None
    _kept: dict[tuple, Any] = field(default_factory=dict)
    _room: int = REMEMBERED

    def __post_init__(self) -> None:
        self.asked = digest([q for batch in self.batches for q in batch])
        self.sizes = [len(batch) for batch in self.batches]

    @property
    def questions(self) -> list[Question]:
        """In the order of their scores."""
        return [q for batch in self.batches for q in batch]

    def with_groups(self, modality: Mapping[int, Any], margin: float) -> Bench:
        """Return the bench with other modality groups; encoded batches are shared."""
        return replace(self, modality=modality, margin=margin)

    def part(self, batches: list[list[Question]]) -> Bench:
        """Return the bench with other batches; nothing encoded is shared."""
        return replace(self, batches=batches, _kept={}, _room=REMEMBERED)

    def cell(self, policy: Policy, ep_size: int) -> Outcome:
        """Return the outcome under ``policy``, measured now unless the store has it."""
        return self._once(self._key(policy, ep_size), lambda: self._measure(policy, ep_size))

    def loads(self, policy: Policy, ep_size: int, every: int) -> Outcome:
        """Return the loads of every so many-th batch's prefill, without answers."""
        return self._once(self._key(policy, ep_size, every), lambda: self._prefill(policy, ep_size, every))

    def _once(self, key: str, measure: Callable[[], Outcome]) -> Outcome:
        found = self.store.get(key)
        if found is None:
            start = time.perf_counter()
            found = measure()
            found = replace(found, seconds=round(time.perf_counter() - start, 2))
            self.store.put(key, found)
        return found

    def _prefill(self, policy: Policy, ep_size: int, every: int) -> Outcome:
        total = Loads()
        for number in range(0, len(self.batches), every):
            inputs = self._encoded(number)
            with self._under(policy, ep_size, number, inputs) as recording, torch.no_grad():
                self.loaded.model(**inputs, use_cache=False, logits_to_keep=1)
            total = total.plus(recording.trace, ep_size)
        return Outcome((), total, ep_size, self.loaded.num_experts)

    def _measure(self, policy: Policy, ep_size: int) -> Outcome:
        scores, total = [], Loads()
        for number, batch in enumerate(self.batches):
            inputs = self._encoded(number)
            with self._under(policy, ep_size, number, inputs) as recording, torch.no_grad():
                output = self.loaded.model.generate(**inputs, max_new_tokens=self.max_new_tokens, do_sample=False, temperature=None, top_p=None, top_k=None)
            answers = self.loaded.processor.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
            scores += [question.score(answer.strip()) for question, answer in zip(batch, answers, strict=True)]
            total = total.plus(recording.trace, ep_size)
            self.on_batch(number + 1, len(self.batches))
        return Outcome(tuple(scores), total, ep_size, self.loaded.num_experts)

    @contextmanager
    def _under(self, policy: Policy, ep_size: int, number: int, inputs: Any) -> Iterator[Any]:
        from macs.model import apply

        with self._seeing_once(number), apply(self.loaded.model, policy, ep_size=ep_size, modality=self.modality, inputs=inputs) as recording:
            yield recording

    def _encoded(self, number: int) -> Any:
        """Return the batch as the model takes it; pictures and texts do not depend on the policy, so it is kept if there is room."""
        key = ("inputs", number)
        if key not in self._kept:
            return self._keep(key, encoded(self.loaded, self.batches[number]))
        return self._kept[key]

    @contextmanager
    def _seeing_once(self, number: int) -> Iterator[None]:
        """Give the vision tower's output of a batch back when it is asked again: no policy reaches it."""
        tower = self.loaded.anatomy.vision_tower
        if tower is None:
            yield
            return
        see, key = tower.forward, ("features", number)

        def forward(*args: Any, **kwargs: Any) -> Any:
            if key not in self._kept:
                return copy.copy(self._keep(key, see(*args, **kwargs)))
            return copy.copy(self._kept[key])  # callers split the tensors of what they get, in place

        own = vars(tower).get("forward")  # accelerate puts one there
        tower.forward = forward
        try:
            yield
        finally:
            if own is None:
                del tower.forward
            else:
                tower.forward = own

    def _keep(self, key: tuple, value: Any) -> Any:
        size = sum(t.numel() * t.element_size() for t in _tensors(value))
        if size <= self._room:
            self._room -= size
            self._kept[key] = value
        return value

    def _key(self, policy: Policy, ep_size: int, every: int = 0) -> str:
        what = [self.identity, self.asked, self.sizes, self.max_new_tokens, self.margin, self.modality is not None, asdict(policy), ep_size, every]
        return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:24]


class Store:
    """Measured cells in a file, one line each, so that a study goes on where it stopped; without a file, in memory."""

    def __init__(self, path: Path | None) -> None:
        self._path, self._cells = path, {}
        self.used: dict[str, float] = {}  # seconds that the cells asked for took, now or then
        if path is not None and path.exists():
            for line in path.read_text().splitlines():
                row = json.loads(line)
                key, scores, loads = row.pop("key"), tuple(map(float, row.pop("scores"))), Loads(**row.pop("loads"))
                self._cells[key] = Outcome(scores, loads, **row)

    def get(self, key: str) -> Outcome | None:
        """Return the cell with this name, None if it was not measured."""
        found = self._cells.get(key)
        if found is not None:
            self.used[key] = found.seconds
        return found

    def put(self, key: str, outcome: Outcome) -> None:
        """Keep a cell, in the file at once."""
        self._cells[key] = outcome
        self.used[key] = outcome.seconds
        if self._path is not None:
            row = {"key": key} | asdict(outcome)
            if set(outcome.scores) <= {0.0, 1.0}:
                row["scores"] = "".join(str(int(score)) for score in outcome.scores)
            with self._path.open("a") as file:
                file.write(json.dumps(row) + "\n")


def batched(questions: Sequence[Question], size: int) -> list[list[Question]]:
    """Return the questions in batches of at most ``size``, each of one task; raises ValueError below 1."""
    if size < 1:
        raise ValueError(f"batch is {size}; use 1 or more questions.")
    by_task: dict[str, list[Question]] = {}
    for question in questions:
        by_task.setdefault(question.task, []).append(question)
    return [rows[at : at + size] for rows in by_task.values() for at in range(0, len(rows), size)]


def encoded(loaded: Any, batch: Sequence[Question]) -> Any:
    """Return one padded batch of single-turn conversations on the model's device."""
    pictures = [question.picture() for question in batch]
    conversations = [
        [{"role": "user", "content": [*([{"type": "image", "image": picture}] if picture is not None else []), {"type": "text", "text": question.prompt}]}]
        for question, picture in zip(batch, pictures, strict=True)
    ]
    inputs = loaded.processor.apply_chat_template(
        conversations,
        tokenize=True,
        add_generation_prompt=True,
        return_dict=True,
        return_tensors="pt",
        sanitize_control_tokens=True,
        processor_kwargs={"padding": True, "padding_side": "left"},
    )
    inputs.picture_sizes = [picture.size for picture in pictures if picture is not None]
    return inputs.to(loaded.model.device)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if torch.is_tensor(value):
        yield value
    elif isinstance(value, Mapping):
        yield from (t for v in value.values() for t in _tensors(v))
    elif isinstance(value, (list, tuple)):
        yield from (t for v in value for t in _tensors(v))
    elif hasattr(value, "data") and isinstance(value.data, Mapping):  # a processor's batch
        yield from _tensors(value.data)
