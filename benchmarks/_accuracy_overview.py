"""Every method beside dense, a line of the table each: the first look at a task."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks._accuracy_lines import Row
from benchmarks._accuracy_matrix import DENSITIES, OPTIMIZERS, WORKERS
from benchmarks._accuracy_tasks import TASKS
from benchmarks._streams import markdown_table

LEAST = 3
"""Methods that make a table."""


def overview_of(rows: Sequence[Row]) -> str:
    """Return by how much each method is worse than dense, by optimizer and density; "" for few.

    rows : of one task; of these the usual workers and steps count, with the optimizer handed over
    """
    found: dict[str, dict[tuple[str, str], str]] = {}
    for row in rows:
        if _is_usual(row):
            at = row.line.density or ""
            cells = found.setdefault(str(row.line), {})
            # A method without a density has one figure, under the first.
            cells[row.line.optimizer, str(at or DENSITIES[0])] = _cell(row)
    if len(found) < LEAST:
        return ""
    places = [(each, str(density)) for each in OPTIMIZERS for density in DENSITIES]
    header = ["worse by", *(f"{optimizer}, {density}" for optimizer, density in places)]
    table = [[method, *(cells.get(at, "") for at in places)] for method, cells in found.items()]
    text = f"Every method with {WORKERS} workers and the optimizer handed over, beside dense:\n\n"
    return text + markdown_table(header, table) + "\n"


def _is_usual(row: Row) -> bool:
    line = row.line
    usual = (WORKERS, TASKS[line.task].steps, "handed", False)
    is_paired = row.difference is not None and row.error is not None
    return is_paired and (line.workers, line.steps, line.way, line.is_real) == usual


def _cell(row: Row) -> str:
    unit = " %" if TASKS[row.line.task].is_text else ""
    return f"{row.difference:+.2f} ± {row.error:.2f}{unit}"
