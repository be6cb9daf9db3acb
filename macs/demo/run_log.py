"""The log of a training run."""

import json
import time
from pathlib import Path

from .losses import by_family


class Log:
    """The run's JSON lines: settings, then every 25 steps the losses, router balance and exact match per family."""

    def __init__(self, folder: Path, settings: dict, step: int):
        self.file = (folder / "log.jsonl").open("a")
        self.score, self.tick = {}, time.perf_counter()
        self.write({"settings": settings, "step": step})

    def write(self, line: dict) -> None:
        """One line, at once on the disk."""
        print(json.dumps(line), file=self.file, flush=True)

    def note(self, run, facts: dict, batch: dict, rate: float, images: int) -> None:
        """Counts this step and writes a line at every 25th."""
        if "exact" in facts:
            by_family(facts["exact"], batch["family"], self.score)
        if run.step % 25:
            return
        now = time.perf_counter()
        run.seconds += now - self.tick
        line = {"step": run.step, "seconds": round(run.seconds), "rate": round(rate, 6)}
        line |= {"images_per_second": round(25 * images / (now - self.tick), 1)}
        line |= {name: round(facts[name], 4) for name in ("answer", "dense", "balance") if name in facts}
        line |= {"max_over_mean": facts["skew"]}
        line |= {name: round(right / max(1, asked), 3) for name, (right, asked) in self.score.items()}
        self.write(line)
        self.score, self.tick = {}, now
