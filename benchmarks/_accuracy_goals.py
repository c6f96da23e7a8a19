"""The goals of LDTE-BS with the optimizer handed over, judged line by line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchmarks._accuracy_lines import Row
from benchmarks._accuracy_matrix import DENSITIES, MAIN, advised_line
from benchmarks._accuracy_runs import Line
from benchmarks._accuracy_tasks import TASKS
from benchmarks._streams import markdown_table

POINTS, PERCENT = 0.3, 0.5
"""By how much a line at density 0.001 may be worse: points of accuracy, % of perplexity."""


def goals_table(rows: Sequence[Row]) -> str:
    """Return what the goals ask of each line, and whether it is met."""
    header = ["task, optimizer", "run", "density", "workers", "steps", "worse by", "at most", ""]
    judged = [row for row in rows if _has_a_goal(row.line)]
    found = [
        _judged(row)
        for row in sorted(judged, key=lambda row: _place(row.line))
        if row.difference is not None and row.error is not None
    ]
    return (
        f"At density 0.01 within one standard error of dense; at 0.001 within {POINTS} points, or "
        f"{PERCENT} % of perplexity, at equal steps, or the number of steps that closes it. "
        "LDTE-BS is judged as it is advised: with the optimizer handed over, and at 0.001 with a "
        "warm-up.\n\n" + markdown_table(header, found) + "\n"
    )


def _has_a_goal(line: Line) -> bool:
    """Tell whether a line is LDTE-BS as it is advised, for the usual steps or more."""
    if (line.task, line.optimizer) not in MAIN or line.density not in DENSITIES:
        return False
    advised = advised_line(line.task, line.optimizer, line.density)
    same = replace(advised, workers=line.workers, steps=max(line.steps, advised.steps))
    return line == same


def _place(line: Line) -> tuple[int, int, int, int]:
    """Return where a line stands: what closes a goal behind what misses it."""
    assert isinstance(line.density, float)
    where = MAIN.index((line.task, line.optimizer)), DENSITIES.index(line.density)
    return *where, line.workers, line.steps


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
