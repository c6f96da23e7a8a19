"""Accuracy beside dense, by method, density and optimizer: the work of ``scripts/bench
accuracy``.

A run that the folder's accuracy.json holds is not made again, so that the bench goes on where it
was stopped.  The rate of a line is that with which its first seed ends best, searched alike for
dense and sparse: three rates of a ladder, and further ones while the best is at an end.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.progress import Progress

from benchmarks._accuracy_lines import best_of, is_searched, row_of
from benchmarks._accuracy_matrix import FEW, SEEDS, WORKERS, Wanted, dense_line, matrix
from benchmarks._accuracy_page import table_of, write_page
from benchmarks._accuracy_real import on_real_ranks
from benchmarks._accuracy_runs import Line, Run
from benchmarks._accuracy_simulated import simulate
from benchmarks._accuracy_store import Store
from benchmarks._accuracy_tasks import TASKS
from hvd_sparse.density_text import known_density, plain_density
from hvd_sparse.errors import SparseError
from hvd_sparse.methods.spelling import read_method

QUICK_STEPS = 40
OPTIMIZERS = ("sgd", "momentum", "adamw")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this bench: those of the page, and those of one line."""
    parser.epilog = (
        "Without a method: every line of the page, the most wanted first, as far as its runs are "
        "not in DIR/accuracy.json yet. With one: that line and dense."
    )
    parser.add_argument("--task", choices=TASKS, help="what is learnt (all; of one line: digits)")
    parser.add_argument("--page", action="store_true", help="train nothing, write the page anew")
    parser.add_argument("--minutes", type=float, help="begin no further run after these")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time (%(default)s)")
    parser.add_argument(
        "--method",
        type=_method,
        metavar="METHOD[,OPTION=VALUE...]",
        help="one line only: dense, or a method of `hvd-sparse list`, as in ldte_bs,variant=paper",
    )
    parser.add_argument(
        "--optimizer", choices=OPTIMIZERS, default="momentum", help="of that line (%(default)s)"
    )
    parser.add_argument(
        "--density",
        type=known_density,
        default=0.001,
        help="of that line, a number or NAME=DENSITY,... (%(default)s)",
    )
    parser.add_argument(
        "--rate", type=float, help="learning rate of that line; without it, the best of a search"
    )
    parser.add_argument(
        "--kept", action="store_true", help="the optimizer keeps its work: plain error feedback"
    )
    parser.add_argument(
        "--warmup",
        type=float,
        default=0.0,
        metavar="PART",
        help="of the steps, at falling densities",
    )
    parser.add_argument("--workers", type=int, help="that share a step's examples (4)")
    parser.add_argument("--real", action="store_true", help="as real ranks of this machine")
    parser.add_argument("--steps", type=int, help="of training; without it, the task's own")
    parser.add_argument("--seeds", type=int, help="runs of the line; without it, the page's")


def _method(text: str) -> str:
    """Return a method as it is spelled, if it can be read."""
    if text != "dense":
        try:
            read_method(text)
        except SparseError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
    return text


def run(options: argparse.Namespace) -> int:
    """Train what is not in the folder yet; print the table, or write the page."""
    options.output.mkdir(parents=True, exist_ok=True)
    store = Store(options.output / "accuracy.json")
    wanted = _line_and_dense(options) if options.method else matrix()
    if options.task and not options.method:
        wanted = [each for each in wanted if each.line.task == options.task]
    if options.quick and not options.method:
        wanted = [
            Wanted(replace(each.line, task="digits", steps=QUICK_STEPS), 1) for each in wanted[:3]
        ]
    until = time.monotonic() + 60 * options.minutes if options.minutes else None
    bench = Bench(store, options.jobs, until)
    if not options.page:
        first = [replace(each, seeds=min(each.seeds, FEW)) for each in wanted]
        for each_round in [first, wanted] if first != wanted else [wanted]:
            bench.train(each_round, options.rate, is_short=options.quick)
    # Of the seeds all that are there and that dense has, also those that other calls have made.
    shown = [replace(each, seeds=max(each.seeds, SEEDS)) for each in wanted]
    rows = [row for each in shown if (row := row_of(each, store.results)) is not None]
    console = Console(width=150, highlight=False)
    if options.method:
        console.print(table_of(rows), markup=False, soft_wrap=True)
    else:
        rows = [row for row in rows if options.quick or is_searched(row)]
        there = {row.line for row in rows}
        missing = [each for each in wanted if each.line not in there]
        write_page(options.output, rows, missing, store.results)
        console.print(f"accuracy.md and accuracy.png are in {options.output}; ", end="")
        console.print(f"{len(rows)} of {len(wanted)} lines are there")
    return 0


def _line_and_dense(options: argparse.Namespace) -> list[Wanted]:
    """Return the line that the command line asks for, behind the dense one beside it."""
    task = options.task or "digits"
    steps = options.steps or (QUICK_STEPS if options.quick else TASKS[task].steps)
    seeds = options.seeds or (1 if options.quick else SEEDS)
    way, workers = "kept" if options.kept else "handed", options.workers or WORKERS
    dense = Wanted(dense_line(task, options.optimizer, steps, workers), seeds)
    if options.method == "dense":
        return [dense]
    line = Line(
        task,
        options.optimizer,
        options.method,
        plain_density(options.density) if read_method(options.method).takes_density else None,
        way,
        options.warmup,
        workers,
        steps,
        options.real,
    )
    if line.batch % workers:
        raise SystemExit(
            f"--workers {workers}: a step of {task} has {line.batch} examples, which do not part "
            "evenly: give a divisor of them, or more workers than examples"
        )
    return [dense, Wanted(line, seeds)]


class Bench:
    """Makes runs, and keeps their results.

    Parameters
    ----------
    store : of the results
    jobs : how many runs at a time, each on one core
    until : time by the monotonic clock at which no further run is begun; None for no end
    """

    def __init__(self, store: Store, jobs: int, until: float | None = None) -> None:
        self._store = store
        self._jobs = jobs
        self._until = until

    def train(self, wanted: Sequence[Wanted], rate: float | None, *, is_short: bool) -> None:
        """Make the runs of all lines, in their order as far as jobs allow.

        rate : of every line; None to search
        is_short : take the first rate that a search would try
        """
        context = multiprocessing.get_context("spawn")
        with (
            Progress(transient=True) as progress,
            ProcessPoolExecutor(
                self._jobs, context, initializer=_take_a_core, initargs=(context.Value("i"),)
            ) as pool,
            ThreadPoolExecutor(self._jobs) as lines,
        ):
            bar = progress.add_task("lines", total=len(wanted))

            def train(each: Wanted) -> None:
                progress.update(bar, description=f"{each.line.task} {each.line}")
                chosen = rate or self._rate_of(each.line, pool, is_short=is_short)
                if chosen is not None:
                    runs = [Run(each.line, chosen, seed) for seed in range(each.seeds)]
                    self._make(runs, pool)
                progress.advance(bar)

            # Several lines at a time: one alone would leave cores idle at the end of its search.
            for begun in as_completed([lines.submit(train, each) for each in wanted]):
                try:
                    begun.result()
                except BaseException:
                    lines.shutdown(wait=False, cancel_futures=True)
                    raise

    def _rate_of(
        self, line: Line, pool: ProcessPoolExecutor, *, is_short: bool = False
    ) -> float | None:
        """Return the rate with which the first seed ends best; None where time was up before."""
        ladder = TASKS[line.task].rates[line.optimizer]
        middle = len(ladder) // 2
        if is_short:
            return ladder[middle]
        low, high = middle - 1, middle + 1
        while True:
            self._make([Run(line, rate, 0) for rate in ladder[low : high + 1]], pool)
            scores = {
                rate: result["score"]
                for rate in ladder[low : high + 1]
                if (result := self._store.results.get(Run(line, rate, 0))) is not None
            }
            if len(scores) <= high - low:
                return None
            best = best_of(scores, is_text=TASKS[line.task].is_text)
            if best == ladder[low] and low > 0:
                low -= 1
            elif best == ladder[high] and high + 1 < len(ladder):
                high += 1
            else:
                return best

    def _make(self, runs: Sequence[Run], pool: ProcessPoolExecutor) -> None:
        """Make those of the runs that are not there yet."""
        if self._until is not None and time.monotonic() >= self._until:
            return
        futures = {
            pool.submit(on_real_ranks if run.line.is_real else simulate, run): run
            for run in runs
            if run not in self._store.results
        }
        for future in as_completed(futures):
            run = futures[future]
            try:
                result = future.result()
            except Exception as error:
                raise RuntimeError(f"{run.key} failed: {error}") from error
            self._store.add(run, result)


def _take_a_core(bound: Any) -> None:
    """Bind a job to one core: threads that take turns would only carry their caches about.

    bound : shared by the jobs: how many of them have one
    """
    with bound.get_lock():
        place, bound.value = bound.value, bound.value + 1
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[place % len(cores)]})
