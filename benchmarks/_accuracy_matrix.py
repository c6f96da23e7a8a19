"""The lines of the accuracy page, in the order in which they are worth having."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from benchmarks._accuracy_runs import Line
from benchmarks._accuracy_tasks import TASKS

WORKERS, WARMUP = 4, 0.25
SEEDS, FEW = {"fashion_mnist": 5, "lstm": 3, "gpt": 3}, 3
"""Seeds of the lines that goals are set for and of dense, by task; and of all other lines."""
MORE_STEPS = {
    ("fashion_mnist", "momentum", 0.001): (1.5, 2.0),
    ("gpt", "adamw", 0.001): (2.0,),
    ("fashion_mnist", "adamw", 0.001): (1.5, 2.0),
    ("lstm", "momentum", 0.01): (1.5,),
    ("lstm", "momentum", 0.001): (1.5, 2.0),
    ("fashion_mnist", "momentum", 0.01): (1.25,),
    ("fashion_mnist", "adamw", 0.01): (1.25,),
}
"""Times the usual steps, to see how many close the gap of those who miss the goal."""
OPTIMIZERS = ("momentum", "adamw", "sgd")
DENSITIES = (0.01, 0.001)
MAIN = (
    ("fashion_mnist", "momentum"), ("gpt", "adamw"), ("lstm", "adamw"),
    ("fashion_mnist", "adamw"), ("fashion_mnist", "sgd"), ("lstm", "momentum"),
    ("gpt", "momentum"), ("lstm", "sgd"), ("gpt", "sgd"),
)  # fmt: skip
NAMED = (
    "topk", "dgc", "gaussian_k", "sidco", "redsync", "oktopk", "gtopk", "scalecom", "stc", "sbc",
    "ldte", "radix_select", "random_k", "chunked", "mgs",
)  # fmt: skip
WITHOUT_DENSITY = ("adacomp", "ef_sign")
"""Methods beside LDTE-BS.  Strom's wants a threshold that suits the task, TernGrad and
signSGD have no residual."""


@dataclass(frozen=True)
class Wanted:
    """A line, and how many seeds it is run with."""

    line: Line
    seeds: int


def dense_line(task: str, optimizer: str, steps: int | None = None) -> Line:
    """Return the dense line of a task, which is one training for any number of workers."""
    return Line(task, optimizer, "dense", None, "", 0.0, 1, steps or TASKS[task].steps)


def sparse_line(
    task: str,
    optimizer: str,
    density: float | None,
    method: str = "ldte_bs",
    way: str = "handed",
    warmup: float = 0.0,
) -> Line:
    """Return a line of the usual workers and steps."""
    return Line(task, optimizer, method, density, way, warmup, WORKERS, TASKS[task].steps)


def goal_lines(task: str, optimizer: str) -> list[Line]:
    """Return dense, and LDTE-BS as it is advised."""
    return [
        dense_line(task, optimizer),
        *(advised_line(task, optimizer, density) for density in DENSITIES),
    ]


def advised_line(task: str, optimizer: str, density: float) -> Line:
    """Return LDTE-BS as it is advised at a density: below 0.01 with a warm-up."""
    return sparse_line(task, optimizer, density, warmup=WARMUP if density < 0.01 else 0.0)


def other_ways(task: str, optimizer: str) -> list[Line]:
    """Return LDTE-BS without a warm-up, and with the optimizer kept."""
    lines = [sparse_line(task, optimizer, 0.001)]
    if optimizer == "sgd":  # plain SGD leaves nothing to hand over
        return lines
    return [
        *lines,
        *(sparse_line(task, optimizer, density, way="kept") for density in (0.001, 0.01)),
    ]


def matrix() -> list[Wanted]:
    """Return every line of the page, the most wanted first."""
    usual = {line for task, optimizer in MAIN for line in goal_lines(task, optimizer)}
    return [
        Wanted(line, SEEDS[line.task] if line in usual else FEW)
        for line in dict.fromkeys(_ordered())
    ]


def _ordered() -> Iterator[Line]:
    for task, optimizer in MAIN[:5]:
        yield from goal_lines(task, optimizer)
    yield from _more_steps()
    for task, optimizer in MAIN[:4]:
        yield from other_ways(task, optimizer)
    for task, optimizer in MAIN[5:]:
        yield from goal_lines(task, optimizer)
    yield from _methods("fashion_mnist", ("topk", "dgc"), ("momentum",))
    yield from _more_workers()
    for task, optimizer in MAIN[4:]:
        yield from other_ways(task, optimizer)
    yield from _methods("fashion_mnist", NAMED)
    for optimizer, method in product(OPTIMIZERS, WITHOUT_DENSITY):
        yield sparse_line("fashion_mnist", optimizer, None, method)
    for task in ("gpt", "lstm"):
        yield from _methods(task, NAMED)


def _methods(
    task: str, methods: tuple[str, ...], optimizers: tuple[str, ...] = OPTIMIZERS
) -> Iterator[Line]:
    for optimizer, density, method in product(optimizers, DENSITIES, methods):
        yield sparse_line(task, optimizer, density, method)


def _more_steps() -> Iterator[Line]:
    for (task, optimizer, density), factors in MORE_STEPS.items():
        line = advised_line(task, optimizer, density)
        for times in factors:
            yield replace(line, steps=round(times * line.steps))


def _more_workers() -> Iterator[Line]:
    for workers, (task, optimizer) in product((8, 32), MAIN[:3]):
        for density in DENSITIES:
            yield replace(advised_line(task, optimizer, density), workers=workers)
