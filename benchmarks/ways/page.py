"""``docs/results/ways.md``, of the trainings that are there."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks._accuracy_tasks import TASKS
from benchmarks.ways.table import ways_of
from benchmarks.ways.training import DENSITY, WORKERS, Training

Results = Mapping[Training, Mapping[str, Any]]

HEAD = """# Ways of the literature, beside the two memories

What else could keep accuracy when entries are rare, restated in plain torch and trained side by
side. It is why `optimizer=` does what it does; [an earlier page](accuracy-ways.md) has smaller
tasks and what was tried before. Made by

    python -m benchmarks.ways

which goes on where it was stopped; [ways.json](ways.json) has every training.

{workers} simulated workers, exact top-k per tensor at density {density} unless a way says
otherwise, tensors of one dimension and below 1,024 entries dense. Rates fall to 0 along a cosine;
AdamW decays by 0.01. The rate of every line is that with which its first seed ends best, searched
alike for dense and sparse: three of a ladder of doubling rates, and further ones while the best is
at an end. *Worse by* is paired with dense seed by seed, with its standard error, in {unit}. A
*warm-up* sends 0.25, 0.0625, 0.0156 and 0.0039 over the first quarter of the steps. The decay,
rTop-k and RegTop-k change the memory that is named in the first line, and nothing else.
"""


def render(results: Results, made_with: str) -> str:
    """Return the page.

    Parameters
    ----------
    results : by training
    made_with : versions, in words
    """
    units = "points of test accuracy, or percent of perplexity"
    parts = [HEAD.format(workers=WORKERS, density=DENSITY, unit=units), f"With {made_with}.\n"]
    for task, optimizer in sorted({(each.task, each.optimizer) for each in results}):
        lines = section(results, task, optimizer)
        if lines:
            parts.append(f"## {task}, {optimizer}\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def section(results: Results, task: str, optimizer: str) -> list[str]:
    """Return the table of a task and an optimizer; nothing before dense is there."""
    mine = {each: found for each, found in results.items()
            if (each.task, each.optimizer) == (task, optimizer)}  # fmt: skip
    dense = settled(mine, "dense", has_warmup=False, is_text=TASKS[task].is_text)
    if dense is None:
        return []
    rate, scores = dense
    is_text = TASKS[task].is_text
    head = "| way | warm-up | rate | seeds | ends at | worse by |"
    rows = [head, "| --- | --- | ---: | ---: | ---: | ---: |"]
    rows.append(f"| dense |  | {rate:g} | {len(scores)} | {ends_at(scores, is_text)} |  |")
    steps = next(iter(mine)).steps
    for id, way in ways_of(optimizer, steps).items():
        for has_warmup in (False, True):
            found = None if id == "dense" else settled(
                mine, id, has_warmup=has_warmup, is_text=is_text
            )  # fmt: skip
            if found is not None:
                rate, own = found
                worse = worse_by(own, scores, is_text=is_text)
                rows.append(
                    f"| {way.name} | {'yes' if has_warmup else ''} | {rate:g} | {len(own)} | "
                    f"{ends_at(own, is_text)} | {worse} |"
                )
    return rows


def settled(
    results: Results, way: str, *, has_warmup: bool, is_text: bool
) -> tuple[float, dict[int, float]] | None:
    """Return a line's best rate, and its scores by seed; None before its search is over."""
    firsts = {
        each.rate: found["score"]
        for each, found in results.items()
        if (each.way, each.has_warmup, each.seed) == (way, has_warmup, 0)
    }
    if len(firsts) < 3:
        return None
    # in one order, so that of rates that end alike the search and the page take the same
    best = (min if is_text else max)(sorted(firsts), key=lambda rate: firsts[rate])
    return best, {
        each.seed: found["score"]
        for each, found in results.items()
        if (each.way, each.has_warmup, each.rate) == (way, has_warmup, best)
    }


def ends_at(scores: Mapping[int, float], is_text: bool) -> str:
    """Return the mean of the scores, as accuracy or perplexity."""
    mean = statistics.mean(scores.values())
    return f"{math.exp(mean):.3f}" if is_text else f"{mean:.2f} %"


def worse_by(own: Mapping[int, float], dense: Mapping[int, float], *, is_text: bool) -> str:
    """Return the paired difference to dense with its standard error, in words."""
    shared = sorted(set(own) & set(dense))
    if is_text:
        pairs = [100 * (math.exp(own[seed] - dense[seed]) - 1) for seed in shared]
    else:
        pairs = [dense[seed] - own[seed] for seed in shared]
    mean = statistics.mean(pairs)
    if len(pairs) < 2:
        return f"{mean:+.2f}"
    return f"{mean:+.2f} ± {statistics.stdev(pairs) / math.sqrt(len(pairs)):.2f}"
