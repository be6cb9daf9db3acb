"""``python -m macs``: the commands of the workbench. Bad input ends with one sentence and exit code 2, a broken engine with exit code 1."""

from __future__ import annotations

import argparse
import importlib
import sys

COMMANDS = {
    "run": ("macs.engine.run_command", "run one picture and prompt under one policy"),
    "check": ("macs.engine.check_command", "what a model needs and what of it runs here, from its config alone"),
    "families": ("macs.engine.families_command", "the table of model families in the README"),
    "import": ("macs.engine.import_command", "make a trace of a routing record of vLLM or SGLang"),
    "calibrate": ("macs.eval.calibrate", "find each expert's modality for a model"),
    "record": ("macs.eval.record", "record the page's examples with the embedded model"),
    "bench schedule": ("macs.eval.bench_schedule", "time the scheduler against the experts it schedules"),
    "bench page": ("macs.view.page_bench", "time first paint and slider redraw in a real browser"),
    "bench layer": ("macs.eval.bench_layer", "time one MoE layer at published shapes, ranks in turn"),
    "study quality": ("macs.eval.study_quality", "how right the answers are under each policy and capacity factor"),
    "study tables": ("macs.eval.study_tables", "the paper's tables, and all policies at equal time"),
    "study dependence": ("macs.eval.study_dependence", "accuracy with a random share of all pairs dropped"),
    "study loads": ("macs.eval.study_loads", "how skewed the router's loads are, per layer and rank"),
    "study entropy": ("macs.eval.study_entropy", "whether the entropy weight finds the objects"),
    "tune": ("macs.eval.tune_command", "the policy that changes answers least at a wanted straggler factor"),
    "synthetic": ("macs.engine.synthetic", "write a made-up trace of any size, to see the page with it"),
    "demo": ("macs.demo.cli", "scenes, training and evaluation of the embedded model"),
}


def main(argv: list[str] | None = None) -> int:
    """Run the command named by the first words of ``argv``."""
    argv = sys.argv[1:] if argv is None else argv
    name = next((n for n in (" ".join(argv[:2]), " ".join(argv[:1])) if n in COMMANDS), None)
    if name is None:
        listing = "\n".join(f"  {command:<16} {text}" for command, (_, text) in COMMANDS.items())
        asked_for_help = argv[:1] in ([], ["-h"], ["--help"])
        print(f"usage: python -m macs COMMAND [options]\n\n{listing}", file=sys.stdout if asked_for_help else sys.stderr)
        return 0 if asked_for_help else 2
    module_name, text = COMMANDS[name]
    module = importlib.import_module(module_name)  # only the command asked for pays for its imports
    parser = argparse.ArgumentParser(prog=f"python -m macs {name}", description=text)
    module.add_arguments(parser)
    try:
        return module.main(parser.parse_args(argv[len(name.split()) :]))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    except RuntimeError as error:
        from macs.engine.base import EngineFailure

        if not isinstance(error, EngineFailure):
            raise
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
