"""The evidence of the LDTE-BS paper (chen2021ldte), redone on real gradients of three small models.

    python -m benchmarks.distribution_fit   writes docs/results/distribution-fit.md, .json and .png

1. Its Tab. 1: how far accumulated gradients are from the best Laplace and from the best normal
distribution. 2. Its Fig. 5: how well five selectors select, by data size.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn
from scipy import stats

from benchmarks._fit_page import draw, render
from benchmarks._models import large_tasks
from benchmarks._streams import SEED, Stream, environment, json_by_line, watch
from hvd_sparse.checks import count_from_density
from hvd_sparse.registry import SELECTORS
from hvd_sparse.selectors.contract import Context

TRAINING_DENSITY = 0.001
RECORDED_STEPS = (1, 20, 100, 300)
SELECTED_AFTER = (1, 300)
COMPARED = ("ldte", "ldte_bs", "dgc_sampled", "redsync_trimmed", "radix_select")
Recorded = dict[tuple[str, str, int], dict[str, np.ndarray]]
"""Vectors by tensor, by what they are ("accumulated", or the step's "gradient" alone), model and
step."""


def record(steps: tuple[int, ...], progress: Progress) -> Recorded:
    recorded: Recorded = {}
    for model, make_task in large_tasks().items():
        stream = Stream(make_task, TRAINING_DENSITY, max(steps))
        for seen in watch(stream, progress, model):
            if seen.step in steps:
                recorded["accumulated", model, seen.step] = seen.accumulated
                recorded["gradient", model, seen.step] = seen.gradients
    return recorded


def wasserstein(ordered: np.ndarray, quantile: Callable[[np.ndarray], np.ndarray]) -> float:
    """Wasserstein-1 distance of a sorted sample to a distribution: the mean difference of their
    quantiles."""
    middles = (np.arange(ordered.size) + 0.5) / ordered.size
    return float(np.abs(ordered - quantile(middles)).mean())


def fit(vector: np.ndarray) -> dict[str, float]:
    """Distances to the maximum-likelihood Laplace and normal distributions, over the mean
    magnitude.

    Dividing by the mean magnitude makes tensors and steps comparable; the paper does not say what
    its unit is.
    """
    ordered = np.sort(vector.astype(np.float64))
    median, mean = float(np.median(ordered)), float(ordered.mean())
    laplace = stats.laplace(median, np.abs(ordered - median).mean())
    normal = stats.norm(mean, ordered.std())
    unit = float(np.abs(ordered).mean())
    return {
        "numel": ordered.size,
        "zeros": round(float((ordered == 0).mean()), 6),
        "laplace": round(wasserstein(ordered, laplace.ppf) / unit, 6),
        "normal": round(wasserstein(ordered, normal.ppf) / unit, 6),
        "excess_kurtosis": round(float(stats.kurtosis(ordered)), 6),
    }


def fits(recorded: Recorded) -> list[dict[str, Any]]:
    """Return the fits of every tensor, and of all tensors of a model in one vector, as in the
    paper's table."""
    rows = []
    for (what, model, step), tensors in recorded.items():
        for tensor, vector in {"all": np.concatenate(list(tensors.values())), **tensors}.items():
            rows.append(
                {"what": what, "model": model, "tensor": tensor, "step": step, **fit(vector)}
            )
    return rows


def quality(pool: np.ndarray, size: int, density: float, draws: int) -> list[dict[str, Any]]:
    """Selections from stretches of the pool, from a cold start: counts and energies against exact
    top-k.

    The energy is the sum of squares of what is sent; its error is relative to what exact top-k
    sends.
    """
    rng = np.random.default_rng([SEED, size])
    rows = []
    for draw_number in range(draws if size < pool.size else 1):
        start = int(rng.integers(pool.size - size + 1))
        stretch = np.ascontiguousarray(pool[start : start + size])
        asked = count_from_density(size, density)
        best = np.sort(np.abs(stretch).astype(np.float64))[size - asked :]
        for id in COMPARED:
            context = Context(rng=np.random.default_rng([SEED, size, draw_number]))
            found = SELECTORS.create(id, density=density).find(stretch, context)
            energy = float((found.selection.values.astype(np.float64) ** 2).sum() / (best**2).sum())
            achieved = round(found.selection.count / asked, 6)
            numbers = {
                "achieved": achieved,
                "energy_error": round(energy - 1.0, 6),
                "passes": found.passes,
            }
            rows.append(
                {"selector": id, "density": density, "size": size, "draw": draw_number, **numbers}
            )
    return rows


def qualities(recorded: Recorded, options: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    for step in SELECTED_AFTER:
        of_models = [
            tensors
            for (what, _, at), tensors in recorded.items()
            if (what, at) == ("accumulated", step)
        ]
        pool = np.concatenate([vector for tensors in of_models for vector in tensors.values()])
        for density in options.densities:
            for size in options.sizes:
                found = quality(pool, min(size, pool.size), density, options.draws)
                rows += [{"step": step, **row} for row in found]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--densities", type=float, nargs="+", default=[0.001, 0.01], help="asked of the selectors"
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[10**3, 10**4, 10**5, 10**6])
    parser.add_argument("--draws", type=int, default=20, help="stretches a size")
    parser.add_argument("--output", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    with Progress(
        *Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn()
    ) as progress:
        recorded = record(RECORDED_STEPS, progress)
    fitted, selected = fits(recorded), qualities(recorded, options)
    options.output.mkdir(parents=True, exist_ok=True)
    document = json_by_line({"made_with": environment()}, {"fits": fitted, "selections": selected})
    (options.output / "distribution-fit.json").write_text(document, encoding="utf-8")
    page = render(fitted, selected, TRAINING_DENSITY, options.draws, environment())
    (options.output / "distribution-fit.md").write_text(page, encoding="utf-8")
    draw(selected, options.densities[0], options.output / "distribution-fit.png")
    print(page)


if __name__ == "__main__":
    main()
