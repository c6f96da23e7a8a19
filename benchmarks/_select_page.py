"""The table, the picture, the numbers and the page of ``bench select``."""

from __future__ import annotations

from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

import matplotlib as mpl
from rich.table import Table

mpl.use("Agg")

from matplotlib import pyplot as plt

from benchmarks import _select_lines as lines
from benchmarks._contestants import FLOOR, SELECTORS
from benchmarks._interleaved_timing import Quartiles
from benchmarks._select_lines import Line, Scale
from benchmarks._streams import json_by_line, markdown_table

Trained = list[dict[str, Any]]
HEADER = ("", "ms (quartiles)", "times the floor", "times ours, or one thread", "goal", "")
PICTURE_DENSITY = 0.001

# Okabe and Ito's palette; markers and dashes say it again.
STYLES = {
    FLOOR: ("#000000", "", "-"),
    "ldte_bs": ("#0072B2", "s", "-"),
    "topk": ("#56B4E9", "o", "-"),
    "torch.topk": ("#D55E00", "v", "--"),
    "DGC, sampled threshold": ("#009E73", "^", "--"),
    "Gaussian-k": ("#E69F00", "D", "--"),
    "RedSync, trimmed top-k": ("#CC79A7", "<", ":"),
    "RedSync, threshold search": ("#CC79A7", ">", ":"),
    "RedSync, threshold used 5 times": ("#CC79A7", "x", ":"),
    "Laplace and bisection": ("#999999", "P", ":"),
}


def table_of(measured: list[Line], trained: Trained, *, is_quick: bool) -> Table:
    """Return one table of everything."""
    quick = ": a quick run, no figure here means anything" if is_quick else ""
    table = Table(*HEADER, title=f"What choosing the entries costs{quick}")
    for column in table.columns:
        column.no_wrap = True
        column.justify = "left" if column is table.columns[0] else "right"
    for section, members in groupby(measured, lambda line: line.section):
        table.add_section()
        table.add_row(f"[bold]{section}")
        for line in members:
            color = {True: "green", False: "red", None: ""}[line.is_met]
            table.add_row(*_cells(line), style=color)
    table.add_section()
    table.add_row("[bold]trainings: one pass was enough")
    for row in trained:
        table.add_row(*_trained_cells(row))
    return table


def _cells(line: Line) -> list[str]:
    return [
        line.what,
        _spread(line.milliseconds),
        _spread(line.times_floor),
        _spread(line.versus),
        "" if line.goal is None else str(line.goal),
        {True: "met", False: "missed", None: ""}[line.is_met],
    ]


def _trained_cells(row: dict[str, Any]) -> list[str]:
    verdict = "met" if row["one_pass"] >= lines.ONE_PASS else "missed"
    what = (
        f"{row['selector']}, {row['model']}, density {row['density']:g}, "
        f"{row['selections']:,} selections"
    )
    return [what, f"{row['one_pass']:.1%}", "", "", f"≥ {lines.ONE_PASS:.0%}", verdict]


def _spread(quartiles: Quartiles | None) -> str:
    if quartiles is None:
        return ""
    digits = 3 if quartiles.median < 1 else 2 if quartiles.median < 100 else 0
    low, median, high = (
        f"{number:.{digits}f}" for number in (quartiles.low, quartiles.median, quartiles.high)
    )
    return f"{median} ({low} to {high})"


def write(
    measured: list[Line],
    trained: Trained,
    made_with: dict[str, str],
    folder: Path,
    scale: Scale,
    *,
    is_quick: bool,
) -> None:
    """Write selecting.json, selecting.png and selecting.md."""
    folder.mkdir(parents=True, exist_ok=True)
    head = {"made_with": made_with, "quick": is_quick, "scale": asdict(scale)}
    document = json_by_line(
        head, {"lines": [line.describe() for line in measured], "trainings": trained}
    )
    (folder / "selecting.json").write_text(document, encoding="utf-8")
    draw(measured, folder / "selecting.png")
    (folder / "selecting.md").write_text(
        render(measured, trained, made_with, scale, is_quick), encoding="utf-8"
    )


def draw(measured: list[Line], path: Path) -> None:
    """Draw time against size on the left, and against density on the right."""
    largest = max(line.entries for line in measured if line.density != PICTURE_DENSITY)
    figure, (by_size, by_density) = plt.subplots(
        1, 2, figsize=(11, 5.5), sharey=True, layout="constrained"
    )
    vectors = [
        line
        for line in measured
        if line.section == f"{line.entries:,} entries, density {line.density:g}"
    ]
    for name, (color, marker, dashes) in STYLES.items():
        mine = [line for line in vectors if line.what == name]
        style = {
            "color": color,
            "marker": marker,
            "linestyle": dashes,
            "fillstyle": "none",
            "label": name,
        }
        _curve(
            by_size,
            [(line.entries, line) for line in mine if line.density == PICTURE_DENSITY],
            style,
        )
        _curve(
            by_density, [(line.density, line) for line in mine if line.entries == largest], style
        )
    by_size.set(xlabel=f"entries (density {PICTURE_DENSITY:g})", ylabel="ms a step, one thread")
    by_density.set(xlabel=f"density ({largest:,} entries)")
    for axis in (by_size, by_density):
        axis.set(xscale="log", yscale="log")
        axis.grid(alpha=0.25)
    handles, labels = by_size.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, dpi=120, metadata={"Software": None})
    plt.close(figure)


def _curve(axis: Any, points: list[tuple[float, Line]], style: dict[str, Any]) -> None:
    points = sorted(points, key=lambda point: point[0])
    places = [place for place, _ in points]
    axis.plot(places, [line.milliseconds.median for _, line in points], **style)
    low, high = ([getattr(line.milliseconds, end) for _, line in points] for end in ("low", "high"))
    axis.fill_between(places, low, high, color=style["color"], alpha=0.12, linewidth=0)


PAGE = """# What choosing the entries costs

A step of one worker: from the gradient to the encoded payload and the updated, settled residual, in
one thread, with a warm threshold and under error feedback, unless a section says otherwise. The
floor is one pass over memory, `residual.add_(gradient)` in torch on the same data: 12 bytes an
entry.

Made by `scripts/bench select --rounds {rounds} --training-steps {steps} --output docs/results`
with {environment}.{quick}

A load average above the number of cores says that others were at work meanwhile: such figures are
rough, above all those of two threads.

In every round of a section everybody does one step on the same gradient, in another order; the slow
ones in some rounds only. "times the floor" and "times ours" are quotients of the same round's
times; "ours" is the slower of {ours}; with two threads, that column says how many times faster they
are than one. Figures are medians, with the quartiles in brackets. Gradients are Laplace
distributed, with a scale that differs between 64 stretches of the vector; residuals start as what
error feedback leaves after many steps, and then {warm} rounds go by before anything is timed.
Arrays are used in turn by everybody, so that hardly anything is left in the caches from one step to
the next.

The peers are written in torch operations from the published descriptions (`benchmarks/_peers.py`),
and tests hold them to what they should choose.

{verdict}

![Time against size and density](selecting.png)

{sections}

## How often one pass was enough

Three small models trained with exact top-k and error feedback; the selectors listen to the same
gradients, each with its own residual. "As recorded for the tests" are the trainings of which
`tests/fixtures/gradients` holds some steps. The share of selections after step 20 that read the
vector once; the goal is {one_pass:.0%}. That a step said to be of one pass is one is checked by
page faults (`tests/passes`).

{trainings}
"""


def render(
    measured: list[Line], trained: Trained, made_with: dict[str, str], scale: Scale, is_quick: bool
) -> str:
    return PAGE.format(
        environment=", ".join(f"{name} {version}" for name, version in made_with.items()),
        quick=" **A quick run: no figure here means anything.**" if is_quick else "",
        ours=" and ".join(f"`{id}`" for id in SELECTORS),
        warm=scale.warm,
        rounds=scale.rounds,
        steps=scale.training_steps,
        verdict=_verdict(measured),
        sections="\n\n".join(
            _section(name, list(members))
            for name, members in groupby(measured, lambda m: m.section)
        ),
        one_pass=lines.ONE_PASS,
        trainings=_training_table(trained),
    )


def _verdict(measured: list[Line]) -> str:
    """Return the names of the missed goals, in words."""
    judged = [line for line in measured if line.is_met is not None]
    missed = [line for line in judged if not line.is_met]
    words = f"Of {len(judged)} goals, {len(judged) - len(missed)} are met."
    if not missed:
        return words
    rows = [
        [f"{line.section}: {line.what}", _spread(line.versus or line.times_floor), str(line.goal)]
        for line in missed
    ]
    return f"{words} Missed:\n\n{markdown_table(['', 'measured', 'goal'], rows)}"


def _section(name: str, members: list[Line]) -> str:
    return f"## {name}\n\n{markdown_table(list(HEADER), [_cells(line) for line in members])}"


def _training_table(trained: Trained) -> str:
    header = ["", "one pass", "goal", ""]
    return markdown_table(
        header, [[cell for cell in _trained_cells(row) if cell] for row in trained]
    )
