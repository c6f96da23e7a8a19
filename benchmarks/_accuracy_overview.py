"""Short trainings side by side: of every method, and of more workers."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks._accuracy_lines import Row
from benchmarks._accuracy_matrix import DENSITIES, OPTIMIZERS, SHORT, WORKERS
from benchmarks._accuracy_tasks import TASKS
from benchmarks._streams import markdown_table

LEAST = 3
"""Methods that make a table."""


def overview_of(rows: Sequence[Row]) -> str:
    """Return by how much each method is worse than dense, by optimizer and density; "" for few.

    rows : of one task; of these the short trainings of the usual workers count, with the optimizer
        handed over
    """
    found: dict[str, dict[tuple[str, str], str]] = {}
    for row in rows:
        if _is_usual(row):
            at = row.line.density or ""
            cells = found.setdefault(row.line.method, {})
            # A method without a density has one figure, under the first.
            cells[row.line.optimizer, str(at or DENSITIES[0])] = _cell(row)
    if len(found) < LEAST:
        return ""
    places = [(each, str(density)) for each in OPTIMIZERS for density in DENSITIES]
    header = ["worse by", *(f"{optimizer}, {density}" for optimizer, density in places)]
    table = [[method, *(cells.get(at, "") for at in places)] for method, cells in found.items()]
    text = (
        f"Every method in {SHORT} steps with {WORKERS} workers and the optimizer handed over, "
        f"beside dense of {SHORT} steps:\n\n"
    )
    return text + markdown_table(header, table) + "\n"


def _is_usual(row: Row) -> bool:
    line = row.line
    usual = (WORKERS, SHORT, "handed", False)
    return is_paired(row) and (line.workers, line.steps, line.way, line.is_real) == usual


def is_paired(row: Row) -> bool:
    """Tell whether a row stands beside dense, with an error."""
    return row.difference is not None and row.error is not None


def workers_of(rows: Sequence[Row]) -> str:
    """Return by how much LDTE-BS is worse than dense with more and more workers; "" for none."""
    found: dict[tuple[str, str, float | str], dict[int, Row]] = {}
    for row in rows:
        line = row.line
        is_ours = (line.method, line.way, line.steps) == ("ldte_bs", "handed", SHORT)
        if is_ours and is_paired(row) and not line.is_real and line.density is not None:
            found.setdefault((line.task, line.optimizer, line.density), {})[line.workers] = row
    found = {line: cells for line, cells in found.items() if len(cells) > 1}
    counts = sorted({workers for cells in found.values() for workers in cells})
    if not counts:
        return ""
    header = ["worse by", "density", *(f"{workers} workers" for workers in counts)]
    table = [
        [f"{task}, {optimizer}", f"{density}"]
        + [_cell(cells[workers]) if workers in cells else "" for workers in counts]
        for (task, optimizer, density), cells in found.items()
    ]
    text = (
        f"## More workers\n\nLDTE-BS in {SHORT} steps, at 0.001 with a warm-up. Workers share a "
        "step's examples, so that each sees fewer; 32 who learn a text have a window each, beside "
        "a dense training of 32 windows a step.\n\n"
    )
    return text + markdown_table(header, table) + "\n"


def _cell(row: Row) -> str:
    unit = " %" if TASKS[row.line.task].is_text else ""
    return f"{row.difference:+.2f} ± {row.error:.2f}{unit}"
