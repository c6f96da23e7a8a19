"""The page of the papers' figures: one row each, and what was made anew."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

from benchmarks._streams import markdown_table
from benchmarks.papers.outcomes import curves_by_workers
from benchmarks.papers.rows import ROWS, Row

mpl.use("Agg")
from matplotlib import pyplot as plt

KEPT_BACK = {
    "contraction": ("measured", "o"),
    "contraction_of_bells": ("(1 - k/n)²", "_"),
    "contraction_bound": ("1 - k/n", "x"),
}
INTRODUCTION = """\
# The papers' tables and figures

Every table and figure of the papers that the methods come from, as far as their text is open: how
to make it here, on what, and what came out beside what is printed there; or why it cannot be made
here. Two things cannot be had on a machine with two cores and no GPU: training networks of tens of
millions of parameters on CIFAR and ImageNet to their end (`examples/` does it for
who has data and hosts), and times on GPUs. The same questions are answered on small networks, real
wires and recorded sizes instead, and a row says which.
"""


def read(output: Path) -> dict[str, Any]:
    """Return what was measured."""
    found: dict[str, Any] = json.loads(output.with_suffix(".json").read_text(encoding="utf-8"))
    return found


def write(found: dict[str, Any], output: Path) -> None:
    """Write OUTPUT.md and OUTPUT.png."""
    picture = output.with_suffix(".png")
    draw(found, picture)
    output.with_suffix(".md").write_text(render(found, picture.name), encoding="utf-8")


def render(found: dict[str, Any], picture: str) -> str:
    """Return the page's text."""
    made = ", ".join(f"{name} {value}" for name, value in found["made_with"].items())
    parts = [INTRODUCTION]
    for paper in dict.fromkeys(row.paper for row in ROWS):
        parts.append(f"## {paper}\n")
        cells = [_cells(row, found) for row in ROWS if row.paper == paper]
        parts.append(markdown_table(["", "printed", "made here by", "what came out"], cells) + "\n")
    parts.append("## What `python -m benchmarks.papers` has made\n")
    parts.append(
        f"With {made}: plain SGD at the middle rate of the accuracy page's ladders, simulated "
        "workers that share a step's examples.\n"
    )
    parts.append(f"![Residuals, similarity, contraction, curves by workers]({picture})\n")
    parts.append(_contractions(found["contraction"]) + "\n")
    parts.append(_adacomp(found["adacomp"]) + "\n")
    parts.append(_similarity(found["similarity"]) + "\n")
    return "\n".join(parts)


def _cells(row: Row, found: dict[str, Any]) -> list[str]:
    outcome = row.outcome(found) if callable(row.outcome) else row.outcome
    return [row.what, row.printed, row.made_by, outcome]


def _contractions(rows: Sequence[dict[str, Any]]) -> str:
    """Return what was kept back of the accumulated vector, squared, beside two bounds."""
    cells = [
        [
            row["task"],
            f"{row['density']:g}",
            f"{row['contraction']:.4f}",
            f"{row['contraction_of_bells']:.4f}",
            f"{row['contraction_bound']:.4f}",
        ]
        for row in rows
    ]
    header = ["exact top-k", "density", "measured", "(1 - k/n)^2", "1 - k/n"]
    return markdown_table(header, cells)


def _adacomp(rows: Sequence[dict[str, Any]]) -> str:
    """Return AdaComp's density and effective ratio by tensor."""
    cells = [
        [
            f"{row['task']} `{row['tensor']}`",
            row["kind"],
            f"{row['density']:.5f}",
            f"{row['ratio']:.0f}",
        ]
        for row in rows
    ]
    return markdown_table(["AdaComp", "layer", "density", "times fewer bits"], cells)


def _similarity(rows: Sequence[dict[str, Any]]) -> str:
    """Return the cosines between residuals, a column a method."""
    methods = list(dict.fromkeys(row["method"] for row in rows))
    by_step: dict[int, dict[str, float]] = {}
    for row in rows:
        by_step.setdefault(row["step"], {})[row["method"]] = row["cosine"]
    cells = [
        [str(step), *(f"{values[method]:.3f}" for method in methods)]
        for step, values in by_step.items()
    ]
    return markdown_table(["cosine of two workers' residuals, step", *methods], cells)


def draw(found: dict[str, Any], path: Path) -> None:
    """Draw the residuals' histogram, their similarity, the contraction, and ScaleCom's curves."""
    figure, panels = plt.subplots(2, 2, figsize=(9, 6.6), layout="constrained")
    (left, middle), (right, last) = panels
    drawn = found["histogram"]
    left.fill_between(drawn["middles"], drawn["measured"], step="mid", alpha=0.4, label="residual")
    left.plot(drawn["middles"], drawn["laplace"], label="Laplace")
    left.plot(drawn["middles"], drawn["normal"], "--", label="normal")
    left.set_yscale("log")
    # normal tails fall out of any picture
    left.set_ylim(bottom=max(1e-6, 0.2 * min(v for v in drawn["measured"] if v > 0)))
    left.set_title("LDTE's Fig. 1: residuals and fits", fontsize=9)
    for method in dict.fromkeys(row["method"] for row in found["similarity"]):
        rows = [row for row in found["similarity"] if row["method"] == method]
        middle.plot([row["step"] for row in rows], [row["cosine"] for row in rows], label=method)
    middle.set_title("ScaleCom: cosine of two workers' residuals", fontsize=9)
    middle.set_xlabel("step", fontsize=8)
    names = [f"{row['task'].split('_')[0]}\n{row['density']:g}" for row in found["contraction"]]
    places = np.arange(len(names))
    for key, (label, mark) in KEPT_BACK.items():
        right.plot(places, [row[key] for row in found["contraction"]], mark, label=label)
    right.set_xticks(places, names)
    right.set_title("GaussianK: what top-k keeps back", fontsize=9)
    for label, (steps, scores) in curves_by_workers().items():
        last.plot(steps, scores, label=label)
    last.set_title("ScaleCom among more workers: accuracy on the digits, %", fontsize=9)
    last.set_xlabel("step", fontsize=8)
    for axes in panels.flat:
        axes.legend(fontsize=7)
        axes.tick_params(labelsize=7)
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)
    plt.close(figure)
