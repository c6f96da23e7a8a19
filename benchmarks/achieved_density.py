"""Achieved densities: entries that every selector sends of those asked for, and its passes over the
vector.

    python -m benchmarks.achieved_density       writes docs/results/achieved-density.md and .json

Three small models are trained with exact top-k and error feedback.  Every selector listens to the
same gradients, with its own residual, warm start and memo, so that what it selects from is what its
own past selections left.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from benchmarks._density_page import GOAL_PASSES, LDTE_BS, SETTLED, render
from benchmarks._models import large_tasks
from benchmarks._streams import Listener, Stream, environment, json_by_line, watch
from hvd_sparse.checks import count_from_density
from hvd_sparse.registry import SELECTORS
from hvd_sparse.selectors._search import band_around
from hvd_sparse.selectors.contract import DensitySelector

TENSORS = {
    "cnn": ("conv2.weight", "fc1.weight"),
    "lstm": ("embedding.weight", "lstm.weight_ih_l0", "lstm.weight_hh_l0", "decoder.weight"),
    "transformer": (
        "embedding.weight",
        "encoder.layers.0.self_attn.in_proj_weight",
        "encoder.layers.1.linear1.weight",
        "decoder.weight",
    ),
}
Row = tuple[int, float, float, int, bool]
"""step, asked count, achieved / asked, passes, fallback"""


def variants() -> dict[str, dict[str, Any]]:
    """Return options by name: every selector that takes a density, and its noteworthy options."""
    plain = {
        id: {"id": id} for id in SELECTORS.ids() if issubclass(SELECTORS.get(id), DensitySelector)
    }
    for search in ("log_count", "bisection"):
        for warm in (True, False):
            if (search, warm) != ("log_count", True):
                name = f"{LDTE_BS}, {search}, {'warm' if warm else 'cold'}"
                plain[name] = {"id": LDTE_BS, "search": search, "warm_start": warm}
    plain["gaussian_k, improved"] = {"id": "gaussian_k", "variant": "improved"}
    for distribution in ("generalised_pareto", "gamma"):
        plain[f"sidco, {distribution}"] = {"id": "sidco", "distribution": distribution}
    return dict(sorted(plain.items()))


def measure(
    model: str, density: float, steps: int, progress: Progress
) -> dict[tuple[str, str], list[Row]]:
    """Return rows by variant and tensor of one training."""
    stream = Stream(large_tasks()[model], density, steps)
    listeners = {
        (name, tensor): Listener({**options, "density": density}, stream.specs[tensor])
        for name, options in variants().items()
        for tensor in TENSORS[model]
    }
    rows: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for seen in watch(stream, progress, f"{model}, density {density:g}"):
        for (name, tensor), listener in listeners.items():
            found = listener.step(seen.gradients[tensor]).found
            asked = count_from_density(found.selection.numel, density)
            achieved = found.selection.count / asked
            rows[name, tensor].append((seen.step, asked, achieved, found.passes, found.is_fallback))
    return rows


def summarise(rows: list[Row]) -> dict[str, float]:
    """Return the numbers of the tables, from those of many steps."""
    step, asked, achieved, passes, fallback = np.array(rows, dtype=float).T
    low, median, high = np.percentile(achieved, [5, 50, 95])
    tolerance = SELECTORS.get(LDTE_BS)(density=1.0).tolerance
    is_within = [
        round(k * ratio) in band_around(int(k), tolerance) for k, ratio in zip(asked, achieved)
    ]
    summary = {
        "selections": len(rows),
        "least_asked": float(asked.min()),
        "achieved_p5": low,
        "achieved_median": median,
        "achieved_p95": high,
        "passes_mean": float(passes.mean()),
        "passes_p95": float(np.percentile(passes, 95)),
        "fallbacks": float(fallback.mean()),
        "within_goal": float((passes[step > SETTLED] <= GOAL_PASSES).mean()),
        "within_tolerance": float(np.mean(is_within)),
    }
    return {name: round(float(number), 5) for name, number in summary.items()}


def write(results: list[dict], options: argparse.Namespace) -> str:
    """Write the page, and the numbers behind it."""
    made_with = environment()
    page = render(results, options.densities, options.models, options.steps, made_with)
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "achieved-density.md").write_text(page, encoding="utf-8")
    document = json_by_line({"made_with": made_with, "steps": options.steps}, {"results": results})
    (options.output / "achieved-density.json").write_text(document, encoding="utf-8")
    return page


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=sorted(TENSORS), default=sorted(TENSORS))
    parser.add_argument("--densities", type=float, nargs="+", default=[0.0001, 0.001, 0.01])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--output", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    results: list[dict] = []
    with Progress(
        *Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn()
    ) as progress:
        for density in options.densities:
            pooled: dict[str, list[Row]] = defaultdict(list)
            for model in options.models:
                for (name, tensor), rows in measure(
                    model, density, options.steps, progress
                ).items():
                    where = {"selector": name, "density": density, "model": model, "tensor": tensor}
                    results.append({**where, **summarise(rows)})
                    pooled[name] += rows
            for name, rows in pooled.items():
                where = {"selector": name, "density": density, "model": None, "tensor": None}
                results.append({**where, **summarise(rows)})
    print(write(results, options))


if __name__ == "__main__":
    main()
