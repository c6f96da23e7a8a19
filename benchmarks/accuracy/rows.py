"""Rows of the accuracy page, which compare a line with dense training, seed by seed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.accuracy.plan import SEEDS, best_rate, is_searched
from benchmarks.accuracy.store import Results
from benchmarks.accuracy.tasks import TASKS
from benchmarks.accuracy.training import Line, Run

POINTS, PERCENT = 0.1, 0.5
"""How much worse a line may be at 1/600, in points of accuracy or % of perplexity. If the standard
error is larger, it is the limit."""
OF_MUON = {"ours/100": 1.0, "ours/300": 4.0}
"""Rules that are judged with Muon, and how much worse they may be, in % of perplexity."""


@dataclass(frozen=True)
class Row:
    """A line at its best learning rate."""

    line: Line
    rate: float
    is_searched: bool  # the rates on both sides were tried
    scores: tuple[float | None, ...]  # by seed, in % or nats; None for what diverged
    worse: tuple[float, ...]  # than dense's same seed: points, or % of perplexity
    part: float  # of the bytes of float32

    @property
    def mean(self) -> float | None:
        """The mean score; for texts, the perplexity of the mean loss. None if a seed diverged."""
        known = [score for score in self.scores if score is not None]
        if len(known) < len(self.scores):
            return None
        mean = float(np.mean(known))
        return math.exp(mean) if TASKS[self.line.task].is_text else mean

    @property
    def difference(self) -> float | None:
        return float(np.mean(self.worse)) if self.worse else None

    @property
    def error(self) -> float | None:
        if len(self.worse) < 2:
            return None
        return float(np.std(self.worse, ddof=1) / math.sqrt(len(self.worse)))


def row_of(line: Line, results: Results) -> Row | None:
    if not any(run.line == line for run in results):
        return None
    rate = best_rate(line, results)
    found = {seed: results.get(Run(line, rate, seed)) for seed in range(SEEDS)}
    runs = {seed: told for seed, told in found.items() if told is not None}
    return Row(
        line,
        rate,
        is_searched(line, results),
        tuple(told["score"] for told in runs.values()),
        _worse(line, {seed: told["score"] for seed, told in runs.items()}, results),
        float(np.mean([told["part"] for told in runs.values()])),
    )


def _worse(line: Line, scores: dict[int, float | None], results: Results) -> tuple[float, ...]:
    dense = replace(line, rule="dense")
    if line == dense or not any(run.line == dense for run in results):
        return ()
    rate = best_rate(dense, results)
    differences = []
    for seed, score in scores.items():
        beside = results.get(Run(dense, rate, seed), {}).get("score")
        if beside is None or score is None:
            continue
        is_text = TASKS[line.task].is_text
        differences.append(100 * math.expm1(score - beside) if is_text else beside - score)
    return tuple(differences)


def verdict_of(row: Row) -> str:
    if row.difference is None or row.error is None or len(row.worse) < SEEDS:
        return f"not judged: {len(row.worse)} of {SEEDS} seeds"
    usual = PERCENT if TASKS[row.line.task].is_text else POINTS
    over = row.difference - max(row.error, OF_MUON.get(row.line.rule, usual))
    return "met" if over <= 0 else f"missed by {over:.2f}"


def ahead_of_ours(rows: list[Row]) -> list[tuple[Row, Row]]:
    """Return others' rules that beat our best line with at most as many bytes, and this line."""
    judged = [(row, row.difference) for row in rows if row.difference is not None]
    found = []
    for row, difference in judged:
        within = [
            (beside, ours)
            for ours, beside in judged
            if is_ours(ours.line) and ours.part <= 1.02 * row.part
        ]
        if within and not is_ours(row.line):
            beside, ours = min(within, key=lambda each: each[0])
            if difference < beside:
                found.append((row, ours))
    return found


def is_ours(line: Line) -> bool:
    return line.rule.partition("/")[0] == "ours"
