"""Time to accuracy: whole trainings on shaped hosts, until they are as good as dense's end.

Data, networks and learning rates are those of ``scripts/bench accuracy``, whose searches choose
the rate of every method.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks._accuracy_lines import row_of
from benchmarks._accuracy_matrix import WARMUP, Wanted, dense_line, sparse_line
from benchmarks._accuracy_runs import Line, Run
from benchmarks._accuracy_store import Store
from benchmarks._accuracy_tasks import TASKS
from benchmarks.network import page, probe, training_page
from benchmarks.network.cluster import Cluster

Launch = Callable[[Cluster, str, list[str], Path], dict[str, Any]]

OPTIMIZERS = {
    "digits": "momentum",
    "fashion_mnist": "momentum",
    "gpt": "adamw",
    "lstm": "adamw",
}
"""With which a task is trained here."""
METHODS = ("dense", "fp16", "topk", "dgc", "ldte_bs")
QUICK_STEPS = 24
RATES_FILE = Path("docs/results/accuracy.json")


def lines_of(task: str, hosts: int, methods: Sequence[str] = METHODS) -> list[Line]:
    """Return the trainings of a task: dense, fp16, exact top-k, DGC and ours."""
    optimizer = OPTIMIZERS[task]
    dense = dense_line(task, optimizer)
    lines = [dense, replace(dense, method="fp16"), sparse_line(task, optimizer, 0.01, "topk")]
    if optimizer == "momentum":  # DGC's correction is of momentum
        lines.append(sparse_line(task, optimizer, 0.01, "dgc"))
    lines.append(sparse_line(task, optimizer, 0.01))
    lines.append(sparse_line(task, optimizer, 0.001, warmup=WARMUP))
    chosen = [line for line in lines if line.method in methods]
    return [replace(line, workers=hosts, is_real=True) for line in chosen]


def rate_of(line: Line, results: dict[Run, dict[str, Any]]) -> float:
    """Return the rate that a search has found for a line; of one that was not searched, that of
    ``ldte_bs`` at the same density."""
    usual = dense_line(line.task, line.optimizer)
    if line.method not in ("dense", "fp16"):
        usual = sparse_line(
            line.task, line.optimizer, line.density, line.method, warmup=line.warmup
        )
    for searched in (usual, replace(usual, method="ldte_bs")):
        row = row_of(Wanted(searched, 1), results)
        if row is not None and len(row.tried) > 1:
            return row.rate
    raise SystemExit(
        f"no rate is known for {line.task} with {line.optimizer}: run scripts/bench accuracy "
        f"--task {line.task} --output {RATES_FILE.parent} first"
    )


def run(options: argparse.Namespace, launch: Launch) -> None:
    """Train every method of every task at every rate of the wire, and write the page as they
    come."""
    cluster = Cluster(options.hosts)
    cluster.lay()
    results = Store(RATES_FILE).results
    runs = page.kept(options, "runs")
    for rate in options.rates:
        shaped = None if rate == "none" else rate
        cluster.shape(shaped)
        wire = page.describe_wire(probe.measure(cluster, shaped))
        for task in options.train:
            for line in lines_of(task, options.hosts, options.methods):
                if options.quick:
                    ladder = TASKS[task].rates[line.optimizer]
                    trained = Run(replace(line, steps=QUICK_STEPS), ladder[len(ladder) // 2], 0)
                else:
                    trained = Run(line, rate_of(line, results), 0)
                found = _train(cluster, options.controller, trained, launch)
                where = {"rate": rate, "controller": options.controller, "wire": wire}
                where |= {"command": page.command(), "load": os.getloadavg()[1]}
                runs = page.joined(runs, [{**where, **found}], training_page.WHICH)
                training_page.write(runs, options)
                print(f"{rate}, {task}, {line}: {found['seconds_at'][-1]:.1f} s", flush=True)


def _train(cluster: Cluster, controller: str, run: Run, launch: Launch) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="hvd-sparse-training-") as folder:
        output = Path(folder) / "rank0.json"
        program = [sys.executable, "-m", "benchmarks._accuracy_real", run.key, str(output)]
        result = launch(cluster, controller, program, output)
    # the line's density is what was asked for
    achieved = {"density_achieved": result.pop("density")}
    named = {"line": str(run.line), "learning_rate": run.rate}
    return {**asdict(run.line), **named, **achieved, **result}
