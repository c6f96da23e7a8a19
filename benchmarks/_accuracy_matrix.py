"""The lines of the accuracy page, in the order in which they are worth having."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from benchmarks._accuracy_runs import Line
from benchmarks._accuracy_tasks import TASKS

WORKERS, WARMUP = 4, 0.25
SEEDS, FEW = 5, 3
"""Seeds of every line, and how many of these are run of all lines before any line has more."""
SHORT = 400
"""Steps of the trainings that have every method side by side, and numbers of workers."""
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
SIDE_BY_SIDE = (
    ("fashion_mnist", "momentum"), ("fashion_mnist", "adamw"), ("gpt", "adamw"), ("lstm", "adamw"),
    ("fashion_mnist", "sgd"), ("lstm", "momentum"), ("gpt", "momentum"), ("lstm", "sgd"),
    ("gpt", "sgd"),
)  # fmt: skip
NAMED = (
    "ldte_bs", "topk", "dgc", "gaussian_k", "sidco", "redsync", "oktopk", "gtopk", "scalecom",
    "stc", "sbc", "ldte", "random_k", "chunked", "mgs",
)  # fmt: skip
WITHOUT_DENSITY = ("adacomp", "ef_sign")
"""Methods side by side.  Of the others radix_select has topk's entries, so that its lines would be
topk's; Strom's wants a threshold that suits the task; TernGrad and signSGD have no residual."""


@dataclass(frozen=True)
class Wanted:
    """A line, and how many seeds it is run with."""

    line: Line
    seeds: int


def dense_line(task: str, optimizer: str, steps: int | None = None, workers: int = WORKERS) -> Line:
    """Return dense beside some workers: one training for all who share the task's step.

    More workers than a step has examples take a larger one, and so does dense beside them.
    steps : None for the task's usual ones
    """
    alone = workers if workers > TASKS[task].batch else 1
    return Line(task, optimizer, "dense", None, "", 0.0, alone, steps or TASKS[task].steps)


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
    return [Wanted(line, SEEDS) for line in dict.fromkeys(_ordered())]


def _ordered() -> Iterator[Line]:
    for task, optimizer in MAIN[:5]:
        yield from goal_lines(task, optimizer)
    yield from _more_steps()
    for task, optimizer in MAIN[:4]:
        yield from other_ways(task, optimizer)
    for task, optimizer in MAIN[5:]:
        yield from goal_lines(task, optimizer)
    for task, optimizer in SIDE_BY_SIDE[:2]:
        yield from _side_by_side(task, optimizer)
    yield from _more_workers()
    for task, optimizer in SIDE_BY_SIDE[2:]:
        yield from _side_by_side(task, optimizer)
    for task, optimizer in MAIN[4:]:
        yield from other_ways(task, optimizer)


def _side_by_side(task: str, optimizer: str) -> Iterator[Line]:
    """Yield short trainings: dense, and every method as LDTE-BS is advised."""
    yield dense_line(task, optimizer, SHORT)
    for density, method in product(DENSITIES, NAMED):
        advised = advised_line(task, optimizer, density)
        yield replace(advised, method=method, steps=SHORT)
    if task == "fashion_mnist":
        for method in WITHOUT_DENSITY:
            yield replace(sparse_line(task, optimizer, None, method), steps=SHORT)


def _more_steps() -> Iterator[Line]:
    for (task, optimizer, density), factors in MORE_STEPS.items():
        line = advised_line(task, optimizer, density)
        for times in factors:
            yield replace(line, steps=round(times * line.steps))


def _more_workers() -> Iterator[Line]:
    for workers, (task, optimizer) in product((8, 32), MAIN[:3]):
        yield dense_line(task, optimizer, SHORT, workers)
        for density in DENSITIES:
            yield replace(advised_line(task, optimizer, density), workers=workers, steps=SHORT)
