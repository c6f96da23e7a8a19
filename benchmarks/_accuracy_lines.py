"""Rows of the accuracy page: a line's runs beside dense's, seed by seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks._accuracy_matrix import Wanted, dense_line
from benchmarks._accuracy_runs import Line, Run
from benchmarks._accuracy_tasks import TASKS

Results = Mapping[Run, dict[str, Any]]


@dataclass(frozen=True)
class Row:
    """A line, its best rate, and its runs.

    Attributes
    ----------
    tried : rates of the search
    scores : by seed; accuracies in %, or losses in nats a character
    worse : by seed, by how much it is worse than dense of the task's usual steps: points of
        accuracy, or % of perplexity; empty for dense and where dense is not there
    curve : step, and the mean score of the seeds
    density, nbytes : achieved density; bytes that a worker sends in a step
    """

    line: Line
    rate: float
    tried: tuple[float, ...]
    scores: tuple[float, ...]
    worse: tuple[float, ...]
    curve: tuple[tuple[int, float], ...]
    density: float | None
    nbytes: float

    @property
    def mean(self) -> float:
        """The mean score; of texts, the perplexity of the mean loss."""
        mean = float(np.mean(self.scores))
        return math.exp(mean) if TASKS[self.line.task].is_text else mean

    @property
    def difference(self) -> float | None:
        """The mean by which it is worse; None where there is nothing beside it."""
        return float(np.mean(self.worse)) if self.worse else None

    @property
    def error(self) -> float | None:
        """The standard error of the difference; None for fewer than two seeds."""
        if len(self.worse) < 2:
            return None
        return float(np.std(self.worse, ddof=1) / math.sqrt(len(self.worse)))


def row_of(wanted: Wanted, results: Results) -> Row | None:
    """Return the row of a line, of the seeds that are there; None where not even the first is."""
    line = wanted.line
    tried = {
        run.rate: result["score"]
        for run, result in results.items()
        if run.line == line and run.seed == 0
    }
    if not tried:
        return None
    rate = best_of(tried, is_text=TASKS[line.task].is_text)
    seeds = [seed for seed in range(wanted.seeds) if Run(line, rate, seed) in results]
    runs = [results[Run(line, rate, seed)] for seed in seeds]
    densities = [run["density"] for run in runs if run["density"] is not None]
    return Row(
        line,
        rate,
        tuple(sorted(tried)),
        tuple(run["score"] for run in runs),
        _worse(line, dict(zip(seeds, runs)), results),
        tuple((step, float(np.mean(scores))) for step, scores in _points(runs)),
        float(np.mean(densities)) if densities else None,
        float(np.mean([run["bytes"] for run in runs])),
    )


def is_searched(row: Row) -> bool:
    """Tell whether the rates on both sides of a row's were tried, as far as the ladder has them."""
    ladder = TASKS[row.line.task].rates[row.line.optimizer]
    place = ladder.index(row.rate) if row.rate in ladder else 0
    return set(ladder[max(0, place - 1) : place + 2]) <= set(row.tried)


def best_of(scores: Mapping[float, float], *, is_text: bool) -> float:
    """Return the rate with the best score; what is no number is worse than any."""
    sign = -1.0 if is_text else 1.0
    finite = {rate: sign * score for rate, score in scores.items() if math.isfinite(score)}
    return max(finite, key=lambda rate: finite[rate]) if finite else min(scores)


def _worse(line: Line, runs: Mapping[int, dict[str, Any]], results: Results) -> tuple[float, ...]:
    """Return by how much each seed is worse than dense's same seed."""
    if line.method == "dense":
        return ()
    usual = min(line.steps, TASKS[line.task].steps)
    dense = dense_line(line.task, line.optimizer, usual, line.workers)
    beside = row_of(Wanted(dense, len(runs)), results)
    if beside is None or len(beside.scores) < len(runs):
        return ()
    is_text = TASKS[line.task].is_text
    return tuple(
        100 * math.expm1(runs[seed]["score"] - score) if is_text else score - runs[seed]["score"]
        for seed, score in zip(runs, beside.scores)
    )


def _points(runs: Sequence[dict[str, Any]]) -> list[tuple[int, list[float]]]:
    """Return the curves of several seeds, step by step."""
    return [
        (step, [run["curve"][position][1] for run in runs])
        for position, (step, _) in enumerate(runs[0]["curve"])
    ]
