"""Figures and tables of the papers behind the methods, made anew as far as a machine allows.

Writes docs/results/papers.md, .json and .png.  Needs Debian's packages bible-kjv and
dataset-fashion-mnist; some minutes on one core.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.progress import Progress

from benchmarks._streams import environment, json_by_line
from benchmarks.papers import figures, page

WORKERS, STEPS, EVERY = 8, 300, 25
DENSITIES = (0.001, 0.01, 0.1)


def measure(tasks: tuple[str, str, str], steps: int, workers: int) -> dict[str, Any]:
    """Make every figure.

    tasks : images with convolutions, a recurrent network, a transformer
    """
    images, recurrent, transformer = tasks
    found: dict[str, Any] = {"similarity": [], "contraction": [], "adacomp": []}
    with Progress() as progress:
        bar = progress.add_task("figures", total=5)
        for method in ("topk", "scalecom"):
            found["similarity"] += figures.similarity(
                recurrent, method, workers, steps, max(1, steps * EVERY // STEPS)
            )
        progress.advance(bar)
        for task in (images, recurrent, transformer):
            for density in DENSITIES:
                found["contraction"].append(figures.contraction(task, density, workers, steps))
        progress.advance(bar)
        for task in (images, recurrent):
            found["adacomp"] += figures.adacomp(task, workers, steps)
        progress.advance(bar)
        found["dgc"] = figures.dgc_bytes()
        progress.advance(bar)
        found["histogram"] = figures.histogram(recurrent, workers, steps)
        progress.advance(bar)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.papers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="few steps: no figures to quote")
    parser.add_argument("--render", action="store_true", help="measure nothing, write the page")
    parser.add_argument("--output", type=Path, default=Path("docs/results/papers"))
    options = parser.parse_args()
    if options.render:
        found = page.read(options.output)
    elif options.quick:
        found = measure(("digits", "digits", "digits"), 6, 2)
        found["made_with"] = environment()
    else:
        found = measure(("fashion_mnist", "lstm", "gpt"), STEPS, WORKERS)
        found["made_with"] = {**environment(), "workers": WORKERS, "steps": STEPS}
    lists = {name: found[name] for name in ("similarity", "contraction", "adacomp")}
    head = {name: found[name] for name in found if name not in lists}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.with_suffix(".json").write_text(json_by_line(head, lists), encoding="utf-8")
    page.write(found, options.output)


if __name__ == "__main__":
    main()
