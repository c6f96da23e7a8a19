"""The runs of the benchmark in order of priority, and the search for learning rates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from benchmarks.accuracy.store import Results
from benchmarks.accuracy.tasks import TASKS
from benchmarks.accuracy.training import Line, Run

SEEDS = 3
REACH = 3
"""Largest number of times that a search doubles or halves the middle learning rate."""
OURS = "ours/600"
"""The budget of bytes at which the accuracy should equal that of dense training."""
KEY = ("dense", OURS, "ours", "topk/kept", "dgc")
"""Rules that are run first."""
REST = ("topk/handed", "ours/400", "ours/1200", "ours/200", "powersgd/1", "powersgd/4", "fp16")
OF_ADAM = ("sparse_loco/4/62", "sparse_loco/15/128", "demo/8", "one_bit_adam")
"""Rules that take the place of AdamW."""
OF_SGD = ("masked/600", "unmasked/600")
"""Our method with other memories for momentum."""
PAIRS = (
    ("fashion_mnist", "momentum"), ("gpt", "adamw"), ("fashion_mnist", "adamw"),
    ("gpt", "momentum"), ("lstm", "adamw"), ("lstm", "momentum"),
)  # fmt: skip
SHORTER = {
    ("large_gpt", "adamw"): ("dense", OURS, "ours", "dgc", "powersgd/4"),
    ("gpt", "muon"): ("dense", "ours/100", "ours/300", OURS),
    ("large_gpt", "momentum"): ("dense", OURS, "ours"),
    ("large_gpt", "muon"): ("dense", "ours/100", "ours/300"),
}
"""Pairs with fewer rules."""
FITTED = ("gpt", "adamw")
"""Task and optimizer whose results the law of density and steps is fitted to."""
LAW = ("dense", OURS, "ours/1200")
"""Rules that the first two pairs also train with half and twice the usual number of steps."""
SAMPLE_STEPS = 120
"""Number of steps of a training on real ranks."""


def lines_of(task: str, optimizer: str, rules: tuple[str, ...], times: float = 1.0) -> list[Line]:
    return [Line(task, optimizer, rule, round(times * TASKS[task].steps)) for rule in rules]


def rules_of(task: str, optimizer: str) -> tuple[str, ...]:
    if (task, optimizer) in SHORTER:
        return SHORTER[task, optimizer]
    return KEY + REST + (OF_ADAM if optimizer == "adamw" else OF_SGD)


def all_lines() -> list[Line]:
    lines = [line for pair in (*PAIRS, *SHORTER) for line in lines_of(*pair, rules_of(*pair))]
    return lines + [line for pair in PAIRS[:2] for line in other_steps(*pair)]


def other_steps(task: str, optimizer: str) -> list[Line]:
    return [line for times in (0.5, 2.0) for line in lines_of(task, optimizer, LAW, times)]


def samples() -> list[Run]:
    lines = [Line(*pair, rule, SAMPLE_STEPS) for pair in PAIRS[:2] for rule in (OURS, "dgc")]
    return [Run(line, rates_of(line)[REACH], 0) for line in lines]


def next_run(results: Results) -> Run | None:
    return next((run for run in _ordered(results) if run not in results), None)


def _ordered(results: Results) -> Iterator[Run]:
    """Yield runs in order of priority. A search needs the results of its earlier runs, so the
    caller stops at the first run without a result."""
    key = [line for pair in PAIRS[:2] for line in lines_of(*pair, KEY)]
    judged = [line for line in key if line.rule in KEY[:3]]
    yield from _first_of(key)
    for line in judged:
        yield from search(line, results)
    for line in judged:
        yield from seeds_of(line, results)
    for pair in (*PAIRS[2:], *SHORTER):
        yield from _first_of(lines_of(*pair, ("dense", OURS)))
    for pair in PAIRS[:2]:
        yield from _first_of(lines_of(*pair, rules_of(*pair)))
    for line in all_lines():
        yield from search(line, results)
    for run in samples():
        yield from (run, Run(run.line, run.rate, run.seed, is_real=True))
    for line in all_lines():
        yield from seeds_of(line, results)


def _first_of(lines: list[Line]) -> list[Run]:
    return [Run(line, rates_of(line)[REACH], 0) for line in lines]


def rates_of(line: Line) -> list[float]:
    """Return the learning rates that a search may try, which are the same for dense and sparse."""
    middle = TASKS[line.task].rates[line.optimizer]
    return [middle * 2.0**step for step in range(-REACH, REACH + 1)]


def search(line: Line, results: Results) -> Iterator[Run]:
    """Yield the runs of a search: three learning rates, and further ones as long as the best is the
    highest or lowest."""
    ladder = rates_of(line)
    low, high = REACH - 1, REACH + 1
    while True:
        runs = [Run(line, rate, 0) for rate in ladder[low : high + 1]]
        yield from runs
        best = best_of({run.rate: results[run]["score"] for run in runs}, line)
        if best == ladder[low] and low > 0:
            low -= 1
        elif best == ladder[high] and high + 1 < len(ladder):
            high += 1
        else:
            return


def is_searched(line: Line, results: Results) -> bool:
    return all(run in results for run in _so_far(line, results))


def _so_far(line: Line, results: Results) -> Iterator[Run]:
    """Yield the runs of a search up to the first one without a result, which is included."""
    for run in search(line, results):
        yield run
        if run not in results:
            return


def seeds_of(line: Line, results: Results) -> Iterator[Run]:
    for seed in range(1, SEEDS):
        yield Run(line, best_rate(line, results), seed)


def best_rate(line: Line, results: Results) -> float:
    tried = {rate: results.get(Run(line, rate, 0)) for rate in rates_of(line)}
    return best_of({rate: told["score"] for rate, told in tried.items() if told}, line)


def best_of(scores: Mapping[float, float | None], line: Line) -> float:
    """Return the learning rate with the best score. A diverged training has the worst score."""
    sign = 1.0 if TASKS[line.task].is_text else -1.0

    def badness(rate: float) -> float:
        score = scores[rate]
        return math.inf if score is None else sign * score

    return min(sorted(scores), key=badness)
