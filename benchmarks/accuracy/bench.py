"""The command ``python -m benchmarks accuracy``."""

from __future__ import annotations

import argparse
import time
from typing import Any

from benchmarks.accuracy.page import write_page
from benchmarks.accuracy.plan import lines_of, next_run
from benchmarks.accuracy.store import Results, add_result, read_results
from benchmarks.accuracy.training import Run, train

STORE = "accuracy.jsonl"
QUICK_TIMES, QUICK_RULES = 0.02, ("dense", "ours/600", "powersgd/1")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        f"Runs whose results are in DIR/{STORE} are not repeated, so a stopped benchmark can "
        "continue. The most important runs come first."
    )
    parser.add_argument("--page", action="store_true", help="write the page anew, train nothing")
    parser.add_argument("--minutes", type=float, help="minutes after which no run begins")


def run(options: argparse.Namespace) -> int:
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / STORE
    until = time.monotonic() + 60 * options.minutes if options.minutes else None
    while not options.page and (until is None or time.monotonic() < until):
        results = read_results(path)
        wanted = _quick_run(results) if options.quick else next_run(results)
        if wanted is None:
            break
        add_result(path, wanted, _make(wanted))
        print(wanted, flush=True)
    write_page(options.output, read_results(path))
    return 0


def _make(wanted: Run) -> dict[str, Any]:
    if not wanted.is_real:
        return train(wanted)
    # a program of its own, too, which must not be imported with the package
    from benchmarks.accuracy.real import on_real_ranks

    return on_real_ranks(wanted)


def _quick_run(results: Results) -> Run | None:
    lines = lines_of("gpt", "adamw", QUICK_RULES, QUICK_TIMES)
    return next((one for line in lines if (one := Run(line, 0.004, 0)) not in results), None)
