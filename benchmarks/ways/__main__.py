"""Train the ways of the literature to keep accuracy beside the two memories of the package.

Writes docs/results/ways.md and .json, and goes on where it was stopped.  Needs Debian's packages
dataset-fashion-mnist and bible-kjv; about an hour on two cores.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.progress import Progress

from benchmarks._accuracy_store import Store
from benchmarks._accuracy_tasks import TASKS
from benchmarks._streams import environment
from benchmarks.ways.page import render, settled
from benchmarks.ways.table import ways_of
from benchmarks.ways.training import Training, train

LINES = (("fashion_mnist", "momentum"), ("fashion_mnist", "adamw"), ("gpt", "adamw"))
SEEDS = 3
QUICK_STEPS = 24


def lines(tasks: tuple[tuple[str, str], ...], steps: int | None) -> Iterator[Training]:
    """Yield the first training of every line, of the middle rate."""
    for task, optimizer in tasks:
        taken = steps or TASKS[task].steps
        rates = TASKS[task].rates[optimizer]
        for has_warmup in (True, False):
            for way in ways_of(optimizer, taken):
                if way != "dense" or not has_warmup:
                    middle = rates[len(rates) // 2]
                    yield Training(task, optimizer, way, has_warmup, middle, 0, taken)


def wanted(first: Training, results: dict[Training, dict[str, Any]]) -> list[Training]:
    """Return the trainings of a line that can be made now: of its search, or of its seeds."""
    rates = TASKS[first.task].rates[first.optimizer]
    middle = len(rates) // 2
    low, high = middle - 1, middle + 1
    while True:
        tried = [_with(first, rate, 0) for rate in rates[low : high + 1]]
        missing = [each for each in tried if each not in results]
        if missing:
            return missing
        mine = {each: results[each] for each in tried}
        is_text = TASKS[first.task].is_text
        found = settled(mine, first.way, has_warmup=first.has_warmup, is_text=is_text)
        assert found is not None
        best = found[0]
        if best == rates[low] and low > 0:
            low -= 1
        elif best == rates[high] and high + 1 < len(rates):
            high += 1
        else:
            seeds = [_with(first, best, seed) for seed in range(1, SEEDS)]
            return [each for each in seeds if each not in results]


def _with(first: Training, rate: float, seed: int) -> Training:
    return Training(**{**asdict(first), "rate": rate, "seed": seed})


def make(kept: Store[Training], firsts: list[Training], jobs: int, until: float) -> None:
    """Make what is missing, line after line."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool, Progress(transient=True) as shown:
        bar = shown.add_task("lines", total=len(firsts))
        for first in firsts:
            shown.update(bar, description=f"{first.task}, {first.optimizer}, {first.way}")
            while (now := wanted(first, kept.results)) and time.monotonic() < until:
                for training, result in zip(now, pool.map(train, now)):
                    kept.add(training, result)
            shown.advance(bar)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ways",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time")
    parser.add_argument("--minutes", type=float, default=600.0, help="begin no further one then")
    parser.add_argument("--quick", action="store_true", help="digits, few steps: nothing to quote")
    parser.add_argument("--render", action="store_true", help="train nothing, write the page")
    parser.add_argument("--output", type=Path, default=Path("docs/results/ways"))
    options = parser.parse_args()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    kept = Store(options.output.with_suffix(".json"), lambda described: Training(**described))
    tasks = (("digits", "momentum"), ("digits", "adamw")) if options.quick else LINES
    if not options.render:
        firsts = list(lines(tasks, QUICK_STEPS if options.quick else None))
        make(kept, firsts, options.jobs, time.monotonic() + 60 * options.minutes)
    page = render(kept.results, environment())
    options.output.with_suffix(".md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
