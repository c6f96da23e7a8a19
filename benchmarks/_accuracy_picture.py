"""Learning curves of ``scripts/bench accuracy``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

from benchmarks._accuracy_lines import Row
from benchmarks._accuracy_matrix import OPTIMIZERS, WORKERS
from benchmarks._accuracy_tasks import TASKS
from hvd_sparse.density_text import spell_density

mpl.use("Agg")
from matplotlib import pyplot as plt

METHODS, COLUMNS = ("dense", "ldte_bs"), 3


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw dense and LDTE-BS, a picture for every task and optimizer."""
    shown = [row for row in rows if _is_shown(row)]
    pairs = sorted({(row.line.task, row.line.optimizer) for row in shown}, key=_place)
    if not pairs:
        return
    lines = -(-len(pairs) // COLUMNS)
    figure, grid = plt.subplots(
        lines, COLUMNS, figsize=(4.2 * COLUMNS, 3.2 * lines), squeeze=False, layout="constrained"
    )
    for axes in grid.flat[len(pairs) :]:
        axes.set_axis_off()
    for (task, optimizer), axes in zip(pairs, grid.flat):
        _draw_one(axes, [r for r in shown if (r.line.task, r.line.optimizer) == (task, optimizer)])
        axes.set_title(f"{task}, {optimizer}", fontsize=9)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _place(pair: tuple[str, str]) -> tuple[int, int]:
    """Return where a task and an optimizer stand on the page."""
    task, optimizer = pair
    return list(TASKS).index(task), OPTIMIZERS.index(optimizer)


def _is_shown(row: Row) -> bool:
    line = row.line
    usual = line.workers == (1 if line.method == "dense" else WORKERS)
    return (
        line.method in METHODS
        and usual
        and not line.is_real
        and line.steps == TASKS[line.task].steps
    )


def _draw_one(axes: plt.Axes, rows: Sequence[Row]) -> None:
    for row in rows:
        density = f" {spell_density(row.line.density)}" if row.line.density else ""
        steps, scores = zip(*row.curve)
        style = "k-" if row.line.method == "dense" else "--" if row.line.way == "kept" else "-"
        axes.plot(steps, scores, style, label=f"{row.line}{density}", linewidth=1.2)
    ends = [row.curve[-1][1] for row in rows]
    if TASKS[rows[0].line.task].is_text:
        axes.set_ylim(min(ends) - 0.05, max(ends) + 0.6)
        axes.set_ylabel("nats a character", fontsize=8)
    else:
        axes.set_ylim(min(ends) - 6, max(ends) + 1)
        axes.set_ylabel("test accuracy, %", fontsize=8)
    axes.set_xlabel("step", fontsize=8)
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=6)
