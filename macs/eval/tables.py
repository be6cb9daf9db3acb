"""The study's tables: which cells each holds. All are of one bench, and share its store of measured cells."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Sequence

from macs.config import CONTROLS, PRESETS, Policy, preset
from macs.core import modality_groups
from macs.eval.cells import Bench, Outcome, batched
from macs.eval.equal_time import gamma_for
from macs.eval.rows import merged, outcome_row, row
from macs.eval.tasks import Question, first_of_each

SEEDS = (0, 1, 2)  # of the controls that draw lots
GAMMAS = (0.4, 0.6, 0.8, 1.0, 1.2, 1.5, 2.0)
TARGETS = (1.0, 1.1, 1.25, 1.5)  # straggler factors: the fullest rank's tokens ÷ vanilla's mean
FEW = 50  # questions of each task where they are asked one by one, which takes longest
MARGINS = (0.05, 0.1, 0.3, 0.4)
DRAWN = ("random_drop", "macs_shuffled")
NAMES = {
    "vanilla": "vanilla",
    "token_drop": "token drop",
    "expanded_drop": "expanded drop",
    "macs_no_reroute": "MACS, no reroute",
    "macs": "MACS",
    "random_drop": "random drop",
    "lowest_weight_drop": "lowest-weight drop",
    "macs_shuffled": "MACS, shuffled w",
}
Rows = list[dict[str, Any]]


def main(bench: Bench, ep_size: int, tuned: Policy | None) -> Rows:
    """Return the paper's main table at γ = 1, with the controls under it."""
    return _rows(bench, ep_size, [1.0], [*PRESETS, *CONTROLS])


def gamma(bench: Bench, ep_size: int, tuned: Policy | None) -> Rows:
    """Return every policy and control over γ."""
    return _rows(bench, ep_size, GAMMAS, [*PRESETS, *CONTROLS], SEEDS[:1])


def _rows(bench: Bench, ep_size: int, gammas: Sequence[float], names: Sequence[str], seeds: Sequence[int] = SEEDS) -> Rows:
    vanilla = bench.cell(preset("vanilla"), ep_size)
    tasks = [q.task for q in bench.questions]
    found = []
    for name in names:
        for factor in gammas if name != "vanilla" else gammas[:1]:
            policy = preset(name, gamma=factor)
            found.append(row(NAMES[name], policy, _over_seeds(bench, policy, ep_size, seeds), vanilla, tasks))
    return found


def _over_seeds(bench: Bench, policy: Policy, ep_size: int, seeds: Sequence[int] = SEEDS) -> Outcome:
    """Return the cell; of a control that draws lots, the mean over seeds."""
    seeds = seeds if policy.preset in DRAWN else seeds[:1]
    return merged([bench.cell(replace(policy, seed=seed), ep_size) for seed in seeds])


def ablations(bench: Bench, ep_size: int, tuned: Policy | None) -> Rows:
    """Return MACS at γ = 1 with one thing changed at a time; each row is also compared with MACS unchanged."""
    whole, alone = preset("macs"), preset("token_drop")
    changes: list[tuple[str, Policy]] = [
        ("MACS", whole),
        ("without entropy", whole.with_(load="tokens")),
        ("without adaptive capacity", whole.with_(capacity="static")),
        ("without rerouting", whole.with_(overflow="drop")),
        ("token drop", alone),
        ("entropy alone", alone.with_(load="entropy", priority="weighted_score")),
        ("adaptive capacity alone", alone.with_(capacity="modality")),
        ("rerouting alone", alone.with_(overflow="reroute")),
        *((f"δ = {x:g}", whole.with_(delta=x)) for x in (0.0, 0.5, 2.0, 4.0)),
        *((f"ρ = {x:g}", whole.with_(rho=x)) for x in (0.25, 1.0, 1.5)),
        *((f"least affinity {x:g}", whole.with_(min_affinity=x)) for x in (0.1, 0.25, 0.5)),
        *((f"entropy of {x}", whole.with_(entropy_source=x)) for x in ("layer", "embedding")),
        *((f"priority {x}", whole.with_(priority=x)) for x in ("score", "weight")),
        ("standardised over the batch", whole.with_(normalize="batch")),
        ("capacity from effective load", whole.with_(capacity_basis="effective")),
        *((f"renormalise {x}", whole.with_(renormalize=x)) for x in ("always", "never")),
    ]
    vanilla, reference = bench.cell(preset("vanilla"), ep_size), bench.cell(whole, ep_size)
    tasks = [q.task for q in bench.questions]
    found = [row(label, policy, bench.cell(policy, ep_size), vanilla, tasks, against={"MACS": reference}) for label, policy in changes]
    for margin in MARGINS:
        other = _with_margin(bench, margin)
        if other is not None:
            found.append(row(f"margin {margin:g}", whole, other.cell(whole, ep_size), vanilla, tasks, against={"MACS": reference}, margin=margin))
    return found


def _with_margin(bench: Bench, margin: float) -> Bench | None:
    """Return the bench with experts grouped by another margin; None without a calibration."""
    import torch

    from macs.model.calibration import find_calibration

    calibration = find_calibration(bench.loaded.folder)
    if calibration is None:
        return None
    pairs = {layer: map(torch.tensor, (seen, calibration.text_pairs[layer])) for layer, seen in calibration.visual_pairs.items()}
    return bench.with_groups({layer: modality_groups(*both, margin) for layer, both in pairs.items()}, margin)


def mix(bench: Bench, ep_size: int, tuned: Policy | None) -> Rows:
    """Return the policies at γ = 1 on batches of a growing share of questions with a picture."""
    size = max(bench.sizes)
    found = []
    for pictures in sorted({round(size * share) for share in (0, 0.25, 0.5, 0.75, 1)}):
        batches = mixed(bench.questions, pictures, size - pictures)
        if not batches:
            continue
        part = bench.part(batches)
        share = f"{pictures} of {size} with a picture"
        vanilla = part.cell(preset("vanilla"), ep_size)
        for name in ("vanilla", "token_drop", "expanded_drop", "macs", "macs_shuffled"):
            found.append(outcome_row(part, NAMES[name], preset(name), ep_size, vanilla, group=share))
    return found


def mixed(questions: Sequence[Question], pictures: int, texts: int) -> list[list[Question]]:
    """Return whole batches of so many questions with and without a picture, each question at most once."""
    seen, read = [q for q in questions if q.image is not None], [q for q in questions if q.image is None]
    count = min(len(group) // wanted for group, wanted in ((seen, pictures), (read, texts)) if wanted)
    step = max(len(seen) // max(count * pictures, 1), 1)  # spread over the tasks
    seen = seen[::step]
    return [seen[i * pictures : (i + 1) * pictures] + read[i * texts : (i + 1) * texts] for i in range(count)]


def ranks(bench: Bench, ep_size: int, tuned: Policy | None) -> Rows:
    """Return the paper's policies at γ = 1 with the experts on 2, 4 and 8 ranks."""
    found = []
    for size in (2, 4, 8):
        if bench.loaded.num_experts % size:
            continue
        vanilla = bench.cell(preset("vanilla"), size)
        found += [outcome_row(bench, NAMES[name], preset(name), size, vanilla, group=f"ranks: {size}") for name in PRESETS]
    return found


def batch(bench: Bench, ep_size: int, tuned: Policy | None) -> Rows:
    """Return the paper's policies at γ = 1 with 1, 4 and 16 questions in a batch, padded to its longest; fifty questions a task."""
    found = []
    for size in (1, 4, 16):
        part = bench.part(batched(first_of_each(bench.questions, FEW), size))
        vanilla = part.cell(preset("vanilla"), ep_size)
        found += [outcome_row(part, NAMES[name], preset(name), ep_size, vanilla, group=f"questions in a batch: {size}") for name in PRESETS]
    return found


def equal_time(bench: Bench, ep_size: int, tuned: Policy | None) -> Rows:
    """Return every policy at the γ where its fullest rank has the same load, compared with token drop and shuffled entropies there."""
    vanilla, tasks = bench.cell(preset("vanilla"), ep_size), [q.task for q in bench.questions]
    policies = {NAMES[name]: preset(name) for name in (*PRESETS, *CONTROLS) if name != "vanilla"}
    if tuned is not None:
        policies |= {"MACS, tuned": tuned, "MACS, tuned, shuffled w": tuned.with_(entropy_order="shuffled")}
    found = []
    for target in TARGETS:
        at = {label: policy.with_(gamma=gamma_for(bench, policy, ep_size, target)) for label, policy in policies.items()}
        cells = {label: _over_seeds(bench, policy, ep_size) for label, policy in at.items()}
        for label, policy in at.items():
            others = {"token drop", "lowest-weight drop", "random drop"} | {f"{label}, shuffled w"} & set(cells)
            against = {name: cells[name] for name in sorted(others) if name != label}
            found.append(row(label, policy, cells[label], vanilla, tasks, against=against, target=target, group=f"straggler factor {target:g}"))
    return found


TABLES: dict[str, Callable[[Bench, int, Policy | None], Rows]] = {
    "main": main,
    "gamma": gamma,
    "ablations": ablations,
    "mix": mix,
    "ranks": ranks,
    "batch": batch,
    "equal_time": equal_time,
}
