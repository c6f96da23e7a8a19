"""Accuracy beside dense, by method, density and optimizer: the work of ``hvd-sparse bench
accuracy``.

Every run is a file of its own, so that what was measured is not measured again; the best rate of a
line is that of the first seed's best accuracy, searched alike for dense and sparse.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress

from benchmarks._accuracy_runs import Line, Run, on_real_ranks, simulate
from benchmarks._accuracy_tasks import TASKS

OPTIMIZERS = ("sgd", "momentum", "adamw")
DENSITIES = (0.01, 0.001)
METHODS = ("topk", "dgc", "gaussian_k", "sidco", "redsync", "gtopk", "oktopk")
"""Methods beside LDTE-BS that have a line each."""
WARMUP = 0.25
SEEDS = 5


def run(options: argparse.Namespace) -> int:
    """Train what is not in the folder yet; print and write the table."""
    lines = [_line_of(options)] if options.method else lines_of(options)
    if options.method and options.method != "dense":
        lines.insert(0, _dense_beside(lines[0]))
    seeds = options.seeds or (1 if options.quick else SEEDS)
    folder = options.output / "accuracy"
    folder.mkdir(parents=True, exist_ok=True)
    bench = Bench(folder, options.jobs)
    chosen = bench.search(lines, [options.rate] if options.rate else None, is_short=options.quick)
    bench.train([Run(line, chosen[line], seed) for line in lines for seed in range(seeds)])
    rows = [
        row_of(
            line,
            [bench.results[Run(line, chosen[line], seed)] for seed in range(seeds)],
            chosen[line],
        )
        for line in lines
    ]
    compare(rows)
    (options.output / "accuracy.json").write_text(
        json.dumps({"seeds": seeds, "rows": rows}, indent=1) + "\n"
    )
    text = table_of(rows)
    (options.output / "accuracy.md").write_text(text)
    Console(width=150, highlight=False).print(text, markup=False, soft_wrap=True)
    print(f"accuracy.json and accuracy.md are in {options.output}")
    return 0


def _line_of(options: argparse.Namespace) -> Line:
    """The line that the command line asks for."""
    is_dense = options.method == "dense"
    return Line(
        options.task,
        options.optimizer,
        options.method,
        None if is_dense else options.density,
        not options.kept and not is_dense,
        0.0 if is_dense else options.warmup,
        options.workers,
        _epochs_of(options),
        options.real,
    )


def _epochs_of(options: argparse.Namespace) -> int:
    return int(options.epochs or (1 if options.quick else TASKS[options.task].epochs))


def _dense_beside(line: Line) -> Line:
    return Line(
        line.task,
        line.optimizer,
        "dense",
        None,
        False,
        0.0,
        line.workers,
        line.epochs,
        line.is_real,
    )


def lines_of(options: argparse.Namespace) -> list[Line]:
    """Every line of the page for a task: LDTE-BS in all ways, and the other methods with the
    optimizer handed over."""
    found = []
    for optimizer in OPTIMIZERS:
        common = (options.workers, _epochs_of(options), options.real)
        found.append(Line(options.task, optimizer, "dense", None, False, 0.0, *common))
        for density in DENSITIES:
            ways = [("ldte_bs", True, 0.0), ("ldte_bs", True, WARMUP), ("ldte_bs", False, 0.0)]
            ways += [(method, True, 0.0) for method in METHODS]
            found += [
                Line(options.task, optimizer, m, density, handed, warm, *common)
                for m, handed, warm in ways
            ]
    return found


class Bench:
    """Runs, and the folder that keeps their results.

    Parameters
    ----------
    folder : a file for every run
    jobs : how many runs at a time
    """

    def __init__(self, folder: Path, jobs: int) -> None:
        self._folder = folder
        self._jobs = jobs
        self.results: dict[Run, dict[str, Any]] = {}

    def search(
        self, lines: Sequence[Line], rates: Sequence[float] | None, *, is_short: bool
    ) -> dict[Line, float]:
        """The rate of every line: of those given, or of the task's, that with which the first seed
        ends best."""
        asked = {line: tuple(rates or TASKS[line.task].rates[line.optimizer]) for line in lines}
        if is_short:
            asked = {line: rates[:1] for line, rates in asked.items()}
        self.train(
            [
                Run(line, rate, 0)
                for line, rates in asked.items()
                for rate in rates
                if len(rates) > 1
            ]
        )
        return {
            line: max(rates, key=lambda rate: self.results[Run(line, rate, 0)]["accuracy"])
            if len(rates) > 1
            else rates[0]
            for line, rates in asked.items()
        }

    def train(self, runs: Sequence[Run]) -> None:
        """Make the results of these runs; those that are there already are read."""
        missing = [run for run in dict.fromkeys(runs) if not self._is_read(run)]
        context = multiprocessing.get_context("spawn")
        with (
            Progress(transient=True) as progress,
            ProcessPoolExecutor(self._jobs, mp_context=context) as pool,
        ):
            bar = progress.add_task("training", total=len(missing))
            futures = {
                pool.submit(on_real_ranks if run.line.is_real else simulate, run): run
                for run in missing
            }
            for future in as_completed(futures):
                run = futures[future]
                self.results[run] = future.result()
                partial = self._path(run).with_suffix(".partial")
                partial.write_text(
                    json.dumps({"run": asdict(run), "result": self.results[run]}) + "\n"
                )
                partial.replace(self._path(run))
                progress.advance(bar)

    def _path(self, run: Run) -> Path:
        return self._folder / f"{run.key}.json"

    def _is_read(self, run: Run) -> bool:
        if run not in self.results and self._path(run).exists():
            self.results[run] = json.loads(self._path(run).read_text())["result"]
        return run in self.results


def row_of(line: Line, results: Sequence[dict[str, Any]], rate: float) -> dict[str, Any]:
    """A line of the table, JSON-able."""
    densities = [
        result["density_achieved"] for result in results if result["density_achieved"] is not None
    ]
    return {
        **asdict(line),
        "what": str(line),
        "rate": rate,
        "accuracies": [result["accuracy"] for result in results],
        "curve": np.mean([result["curve"] for result in results], axis=0).tolist(),
        "loss": float(np.mean([result["loss"] for result in results])),
        "density_achieved": float(np.mean(densities)) if densities else None,
        "bytes_per_step": float(np.mean([result["bytes_per_step"] for result in results])),
        "steps": results[0]["steps"],
    }


def compare(rows: Sequence[dict[str, Any]]) -> None:
    """Add to every row its difference to dense, seed by seed, and that difference's standard
    error."""
    dense = {_group(row): row["accuracies"] for row in rows if row["method"] == "dense"}
    for row in rows:
        differences = np.subtract(row["accuracies"], dense[_group(row)])
        row["difference"] = float(differences.mean())
        is_known = row["method"] != "dense" and len(differences) > 1
        row["error"] = (
            float(differences.std(ddof=1) / math.sqrt(len(differences))) if is_known else None
        )


def _group(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["task"], row["optimizer"], row["workers"], row["epochs"], row["is_real"]


def table_of(rows: Sequence[dict[str, Any]]) -> str:
    """The rows in Markdown."""
    text = "| optimizer | run | density | sent | rate | accuracy | to dense | bytes a step |\n|---|---|---|---|---|---|---|---|\n"
    for row in rows:
        sent = "" if row["density_achieved"] is None else f"{row['density_achieved']:.4f}"
        error = "" if row["error"] is None else f" ± {row['error']:.2f}"
        beside = "" if row["method"] == "dense" else f"{row['difference']:+.2f}{error}"
        text += (
            f"| {row['optimizer']} | {row['what']} | {row['density'] or ''} | {sent} | "
            f"{row['rate']:g} | "
            f"{np.mean(row['accuracies']):.2f} % | {beside} | {row['bytes_per_step']:,.0f} |\n"
        )
    return text
