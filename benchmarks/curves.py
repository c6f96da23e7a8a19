"""A short training by every named method, for the curve on its page: the work of ``scripts/bench
curves``.

The simulated workers of ``bench accuracy`` on scikit-learn's digits, by SGD with momentum 0.9 that
is handed over, with one learning rate for all: a few seconds a run, and no search.  What the folder
holds already is not made again.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np
from rich.console import Console
from rich.progress import track

from benchmarks._accuracy_lines import Row, row_of
from benchmarks._accuracy_matrix import DENSITIES, WORKERS, Wanted, dense_line
from benchmarks._accuracy_runs import Line, Run
from benchmarks._accuracy_simulated import simulate
from benchmarks._accuracy_store import Store
from benchmarks._streams import markdown_table
from hvd_sparse.methods import METHODS
from hvd_sparse.methods.spelling import read_method

TASK, OPTIMIZER, RATE = "digits", "momentum", 0.05
STEPS, SEEDS = 210, 3
QUICK_STEPS, QUICK_METHODS = 20, ("ldte_bs", "signsgd")
SPELLED = {"strom": "strom,threshold=0.01"}
"""Methods that want an option."""
RATES = {"signsgd": 0.0005}
"""Its update is +1 or -1 an entry: a rate is the length of a step."""
KEPT = ("terngrad", "signsgd")
"""Methods without a residual, which take no optimizer."""
TEXT = """# Curves of all methods

A short training by every named method, of which each [method's page](../methods/index.md) shows the
curve. Made by `scripts/bench curves`: scikit-learn's digits, a network of 71,754 parameters,
{workers} simulated workers that share batches of 64, {steps} steps (10 epochs), SGD with momentum
0.9 that is handed over, learning rate {rate:g} falling to 0 along a cosine, {seeds} seeds.
`terngrad` and `signsgd` keep their optimizer, `signsgd` at rate {signs:g}; `strom` has the
threshold 0.01.

No rate was searched, and ten epochs are few: a line says how a method begins, not what it can
reach. [Accuracy](accuracy.md) has longer trainings with rates of their own. *Work* is the processor
time that a worker's own part of a step takes, in Python and kernels, on a machine with other work;
the tensors are small, so that it is mostly calls. What choosing from large tensors takes is on
[a page of its own](selecting.md). `chunked` sends a chunk of every tensor at least, which here is
the same at both densities.

"""


def lines(*, is_quick: bool = False) -> Iterator[Line]:
    """Return the line of dense, and those of all methods."""
    steps = QUICK_STEPS if is_quick else STEPS
    yield dense_line(TASK, OPTIMIZER, steps)
    for name in QUICK_METHODS if is_quick else sorted(METHODS):
        spelled, way = SPELLED.get(name, name), "kept" if name in KEPT else "handed"
        for density in DENSITIES if read_method(spelled).takes_density else (None,):
            yield Line(TASK, OPTIMIZER, spelled, density, way, 0.0, WORKERS, steps)


def run(options: argparse.Namespace) -> int:
    """Train what is not in the folder yet, and write the page."""
    options.output.mkdir(parents=True, exist_ok=True)
    store, seeds = Store(options.output / "curves.json"), 1 if options.quick else SEEDS
    wanted = list(lines(is_quick=options.quick))
    for line in track(wanted, "training", transient=True):
        for seed in range(seeds):
            one = Run(line, RATES.get(line.method, RATE), seed)
            if one not in store.results:
                store.add(one, simulate(one))
    rows = [row for line in wanted if (row := row_of(Wanted(line, seeds), store.results))]
    (options.output / "curves.md").write_text(page(rows, store))
    Console(width=120).print(f"curves.md and curves.json are in {options.output}")
    return 0


def page(rows: list[Row], store: Store) -> str:
    """Return the page: a row a line."""
    header = ["method", "density", "sent", "accuracy", "worse by", "bytes a step", "work, ms"]
    told = {"workers": WORKERS, "steps": rows[0].line.steps, "seeds": len(rows[0].scores)}
    text = TEXT.format(rate=RATE, signs=RATES["signsgd"], **told)
    return text + markdown_table(header, [_cells(row, store) for row in rows]) + "\n"


def _cells(row: Row, store: Store) -> list[str]:
    line = row.line
    work = [store.results[Run(line, row.rate, seed)]["work_ms"] for seed in range(len(row.scores))]
    error = "" if row.error is None else f" ± {row.error:.2f}"
    return [
        f"`{line.method}`",
        f"{line.density or ''}",
        "" if row.density is None else f"{row.density:.4f}",
        f"{row.mean:.2f} %",
        "" if row.difference is None else f"{row.difference:+.2f}{error}",
        f"{row.nbytes:,.0f}",
        "" if work[0] is None else f"{np.median(work):.2f}",
    ]
