"""Short trainings with every named method, whose curves the methods' pages show.

``python -m benchmarks curves`` trains with the simulated workers of the accuracy benchmark on
scikit-learn's digits. The optimizer is SGD with momentum 0.9, which the compressor gets, unless the
method has no residual. All methods have one learning rate without a search, except those in
``RATES``. A run takes a few seconds. Runs whose results are already in the output folder are not
repeated.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from benchmarks._page import json_by_line, markdown_table
from benchmarks.accuracy.ours import Ours
from benchmarks.accuracy.rules import Dense
from benchmarks.accuracy.tasks import TASKS, WORKERS
from benchmarks.accuracy.training import Training
from examples.spelling import read_method
from hvd_sparse.methods import METHODS

RATE, DENSITIES = 0.05, (0.01, 0.001)
STEPS, SEEDS, POINTS = 210, 3, 12
QUICK_STEPS, QUICK_METHODS = 20, ("ldte_bs", "signsgd")
SPELLED = {"strom": "strom,threshold=0.01"}
"""Methods that need an option."""
RATES = {"signsgd": 0.0005}
"""Other learning rates. Updates of ``signsgd`` are +1 or -1: its rate is the length of a step."""
KEPT = ("terngrad", "signsgd")
"""Methods without a residual, which refuse ``optimizer=``."""
TEXT = """# Curves of all methods

A short training by every named method; each [method's page](../methods/index.md) shows its curve.
Made by `python -m benchmarks curves`. The task is scikit-learn's digits, with a network of 71,754
parameters and {workers} simulated workers that share batches of 64, for {steps} steps (10 epochs).
The optimizer is SGD with momentum 0.9, passed as `optimizer=`, with a learning rate that falls from
{rate:g} to 0 along a cosine; there are {seeds} seeds. With `terngrad` and `signsgd`, the program
keeps the optimizer; `signsgd` has the learning rate {signs:g}. `strom` has the threshold 0.01.

No learning rate was searched, and ten epochs are few. So a row shows how a method begins, not what
it can reach. [Accuracy](accuracy.md) has longer trainings with a rate for each method. *work* is
the CPU time of a worker's own part of a step, in Python and kernels, while other programs ran on
the machine. Because the tensors are small, it is mostly the time of function calls. The time of
selecting from large tensors is on [a page of its own](selecting.md). `chunked` sends at least one
chunk of every tensor, so it sends the same at both densities.

"""


@dataclass(frozen=True)
class Line:
    method: str
    density: float | None


Results = dict[tuple[Line, int], dict[str, Any]]


def lines(*, is_quick: bool = False) -> Iterator[Line]:
    yield Line("dense", None)
    for name in QUICK_METHODS if is_quick else sorted(METHODS):
        spelled = SPELLED.get(name, name)
        for density in DENSITIES if read_method(spelled).takes_density else (None,):
            yield Line(spelled, density)


def run(options: argparse.Namespace) -> int:
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / ("curves_quick.json" if options.quick else "curves.json")
    results = read_results(path)
    seeds, steps = (1, QUICK_STEPS) if options.quick else (SEEDS, STEPS)
    wanted = list(lines(is_quick=options.quick))
    for line in track(wanted, "training", transient=True):
        for seed in range(seeds):
            if (line, seed) not in results:
                results[line, seed] = train(line, seed, steps)
                write_results(path, results)
    path.with_suffix(".md").write_text(page(wanted, seeds, steps, results))
    Console(width=120).print(f"{path.stem}.md and {path.name} are in {options.output}")
    return 0


def read_results(path: Path) -> Results:
    rows = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else []
    results: Results = {}
    for row in rows:
        line = row["run"]["line"]
        results[Line(line["method"], line["density"]), row["run"]["seed"]] = row["result"]
    return results


def write_results(path: Path, results: Results) -> None:
    rows = [
        {"run": {"line": asdict(line), "seed": seed}, "result": result}
        for (line, seed), result in results.items()
    ]
    path.write_text(json_by_line({}, {"runs": rows}), encoding="utf-8")


def train(line: Line, seed: int, steps: int) -> dict[str, Any]:
    rate = RATES.get(line.method, RATE)
    training = Training(TASKS["digits"], "momentum", rate, steps, seed)
    if line.method == "dense":
        result = training.run(training.of(Dense, workers=1), POINTS)
        dense_bytes = sum(4 * p.numel() for p in training.network.parameters())
        sent = {"density": None, "bytes": dense_bytes, "work_ms": None}
    else:
        options: dict[str, Any] = {} if line.density is None else {"density": line.density}
        if line.method not in KEPT:
            options["optimizer"] = training.optimizer
        rule = training.of(Ours, line.method, options)
        result = training.run(rule, POINTS)
        report = rule.sessions[0].step.stats.report(line.density)
        density = report["density_achieved"]
        sent = {
            "density": None if density is None else round(density, 6),
            "bytes": round(report["bytes_sent"] / steps),
            "work_ms": round(1e3 * rule.work_s / steps / WORKERS, 3),
        }
    return {"score": result["score"], "loss": result["loss"], "curve": training.curve, **sent}


def page(wanted: list[Line], seeds: int, steps: int, results: Results) -> str:
    header = ["method", "density", "sent", "accuracy", "worse by", "bytes a step", "work, ms"]
    text = TEXT.format(rate=RATE, signs=RATES["signsgd"], workers=WORKERS, steps=steps, seeds=seeds)
    dense = np.array([results[wanted[0], seed]["score"] for seed in range(seeds)])
    rows = [_cells(line, [results[line, s] for s in range(seeds)], dense) for line in wanted]
    return text + markdown_table(header, rows) + "\n"


def _cells(line: Line, runs: list[dict[str, Any]], dense: np.ndarray) -> list[str]:
    scores = np.array([run["score"] for run in runs])
    worse, is_dense = dense - scores, line.method == "dense"
    error = f" ± {worse.std(ddof=1) / np.sqrt(len(runs)):.2f}" if len(runs) > 1 else ""
    densities = [run["density"] for run in runs if run["density"] is not None]
    return [
        f"`{line.method}`",
        f"{line.density or ''}",
        f"{np.mean(densities):.4f}" if densities else "",
        f"{scores.mean():.2f} %",
        "" if is_dense else f"{worse.mean():+.2f}{error}",
        f"{np.mean([run['bytes'] for run in runs]):,.0f}",
        "" if is_dense else f"{np.median([run['work_ms'] for run in runs]):.2f}",
    ]
