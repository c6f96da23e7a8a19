"""The goals of LDTE-BS with the optimizer handed over, judged line by line."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks._accuracy_lines import Row
from benchmarks._accuracy_tasks import TASKS
from benchmarks._streams import markdown_table

POINTS, PERCENT = 0.3, 0.5
"""By how much a line at density 0.001 may be worse: points of accuracy, % of perplexity."""
METHOD, WAY = "ldte_bs", "handed"


def goals_table(rows: Sequence[Row]) -> str:
    """Return what the goals ask of each line, and whether it is met."""
    header = ["task, optimizer", "run", "density", "workers", "steps", "worse by", "at most", ""]
    found = [
        _judged(row)
        for row in rows
        if (row.line.method, row.line.way, row.line.is_real) == (METHOD, WAY, False)
        and row.difference is not None
        and row.error is not None
    ]
    return (
        f"At density 0.01 within one standard error of dense; at 0.001 within {POINTS} points, or "
        f"{PERCENT} % of perplexity, at equal steps, or the number of steps that closes it.\n\n"
        + markdown_table(header, found)
        + "\n"
    )


def limit_of(row: Row) -> float | None:
    """Return by how much a row may be worse than dense; None where the goals say nothing."""
    if row.line.density == 0.01:
        return row.error
    return PERCENT if TASKS[row.line.task].is_text else POINTS


def verdict_of(row: Row) -> str:
    """Return "met", or by how much it is missed."""
    limit = limit_of(row)
    if row.difference is None or limit is None:
        return ""
    over = row.difference - limit
    return "met" if over <= 0 else f"missed by {over:.2f}"


def _judged(row: Row) -> list[str]:
    line, error = row.line, row.error or 0.0
    more = f" ({line.steps / TASKS[line.task].steps:g} times)"
    return [
        f"{line.task}, {line.optimizer}",
        str(line),
        f"{line.density}",
        str(line.workers),
        f"{line.steps:,}{more if line.steps > TASKS[line.task].steps else ''}",
        f"{row.difference:+.2f} ± {error:.2f}",
        f"{limit_of(row):.2f}",
        verdict_of(row),
    ]
