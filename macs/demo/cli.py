"""`python -m macs demo scenes | train | evaluate | export`."""

import argparse
from dataclasses import MISSING, fields
from pathlib import Path

from .vocabulary import ASSETS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The four commands of the embedded model's world."""
    commands = parser.add_subparsers(dest="demo_command", required=True, metavar="scenes|train|evaluate|export")
    scenes = commands.add_parser("scenes", help="draw example scenes, or write the held-out questions and examples")
    scenes.add_argument("--out", type=Path, required=True, help="folder for the pictures and questions.jsonl")
    scenes.add_argument("--count", type=int, default=12, help="scenes of each kind to draw")
    scenes.add_argument("--seed", type=int, default=1_000_000, help="first seed")
    scenes.add_argument("--held-out", action="store_true", help="write held_out.zip and its checksum instead")
    scenes.add_argument("--examples", action="store_true", help="write the page's six example pictures instead")
    train = commands.add_parser("train", help="train the embedded model, or go on from the folder's checkpoint")
    train.add_argument("--folder", type=Path, required=True, help="where checkpoint and log lie")
    train.add_argument("--weights", type=Path, help="start from this exported model instead of untrained weights")
    train.add_argument("--minutes", type=float, default=float("inf"), help="stop after this time")
    _add_settings(train)
    evaluate = commands.add_parser("evaluate", help="exact match per family on the held-out questions")
    evaluate.add_argument("--model", type=Path, default=ASSETS / "demo_model")
    evaluate.add_argument("--limit", type=int, help="only this many questions per family")
    evaluate.add_argument("--wrong", type=int, default=0, help="show this many wrong answers per family")
    export = commands.add_parser("export", help="write a run's averaged weights as a transformers checkpoint")
    export.add_argument("--folder", type=Path, required=True, help="the training run")
    export.add_argument("--out", type=Path, default=ASSETS / "demo_model")


def _add_settings(parser: argparse.ArgumentParser) -> None:
    from .train import Settings

    for field in fields(Settings):
        assert field.default is not MISSING
        kind = type(field.default)
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind, default=field.default)


def main(args: argparse.Namespace) -> int:
    """Run one command; ValueError, with one sentence, for bad input."""
    {"scenes": _scenes, "train": _train, "evaluate": _evaluate, "export": _export}[args.demo_command](args)
    return 0


def _scenes(args: argparse.Namespace) -> None:
    from .examples import write_examples, write_samples
    from .held_out import write_held_out

    args.out.mkdir(parents=True, exist_ok=True)
    if args.held_out:
        write_held_out(args.out / "held_out.zip")
    elif args.examples:
        write_examples(args.out)
    else:
        write_samples(args.out, args.seed, args.count)


def _train(args: argparse.Namespace) -> None:
    from .train import Settings, train

    settings = Settings(**{field.name: getattr(args, field.name) for field in fields(Settings)})
    train(settings, args.folder, args.weights, args.minutes)


def _evaluate(args: argparse.Namespace) -> None:
    from .evaluate import evaluate

    evaluate(args.model, args.limit, args.wrong)


def _export(args: argparse.Namespace) -> None:
    from .train import export

    export(args.folder, args.out)
