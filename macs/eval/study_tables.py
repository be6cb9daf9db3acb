"""``python -m macs study tables``: the paper's tables and the one at equal time, each into a JSON and a CSV file."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from macs.config import policy_from_dict
from macs.eval.bench import add_bench_flags, document, open_bench
from macs.eval.rows import text, write_csv
from macs.eval.tables import TABLES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    add_bench_flags(parser)
    parser.add_argument("--table", nargs="+", choices=list(TABLES), default=list(TABLES))
    parser.add_argument("--tuned", type=Path, help="a policy that `tune --json` wrote: two more rows of the table equal_time")
    parser.add_argument("--out", type=Path, required=True, help="folder for the files")


def main(args: argparse.Namespace) -> int:
    """Print and write each table; raises ValueError on bad input."""
    tuned = None
    if args.tuned:
        try:
            tuned = policy_from_dict(json.loads(args.tuned.read_text())["policy"])
        except (OSError, KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"{args.tuned.name} holds no policy: {error}. Give the file that `tune --json` wrote.") from None
    args.out.mkdir(parents=True, exist_ok=True)
    bench = open_bench(args)
    for name in args.table:
        bench.store.used.clear()
        make = TABLES[name]
        rows = make(bench, args.ep_size, tuned)
        about = make.__doc__.strip().splitlines()[0].removeprefix("Return ").strip()
        found = document(bench, args, rows, table=name, about=about, minutes=round(sum(bench.store.used.values()) / 60, 1))
        (args.out / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
        write_csv(rows, args.out / f"{name}.csv")
        print(f"\n{name}: {about}\n{text(rows)}", flush=True)
    return 0
