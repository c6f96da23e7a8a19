"""The charts of ``hvd-sparse report``: each draws one question about all runs."""

from __future__ import annotations

import io
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from hvd_sparse.cli._runs import Curve, Run, in_bytes, in_time

PARTS = ("select", "encode", "exchange", "decode", "rest")
MOST_LAYERS = 40
UNKNOWN = "no exchange here knows it"
Draw = Callable[[Axes], None]
Charts = list[tuple[str, int, Draw]]
"""Titles, rows of labels by which a chart grows, and what draws it."""


def charts_of(runs: Sequence[Run]) -> Charts:
    """Return the charts for which some run has something to show."""
    names = dict.fromkeys(name for run in runs for name in run.metric_names())
    curves: dict[str, Callable[[Run, str], Curve]] = {
        name.replace("_", " "): lambda run, over, name=name: run.metric(name, over)  # type: ignore[misc]
        for name in names
    }
    curves["bytes sent"] = Run.bytes_sent
    found: Charts = []
    for title, curve in curves.items():
        form = in_bytes if title == "bytes sent" else None
        for over, word in (("step", "step"), ("seconds", "time")):
            told = [(run.name, curve(run, over)) for run in runs]
            found.append((f"{title} over {word}", 0, partial(_lines, told, over, form)))
    layers = _layers(runs)
    if not layers:
        return found
    for title, field in (("density", "density_achieved"), ("residual norm", "residual_norm")):
        told = [(run.name, run.total(field)) for run in runs]
        found.append((f"{title} over step", 0, partial(_lines, told, "step", None)))
        found.append((f"{title} by layer", len(layers), partial(_dots, runs, layers, field)))
    told_runs = [run for run in runs if run.records]
    found.append(("seconds of a step", len(told_runs), partial(_bars, told_runs)))
    return found


def pictures_of(runs: Sequence[Run]) -> list[str]:
    """Return every chart as SVG."""
    found = []
    for number, (title, rows, draw) in enumerate(charts_of(runs)):
        # the salt keeps the names inside one picture from being another's
        settings = {"svg.fonttype": "none", "svg.hashsalt": f"{number}", "text.parse_math": False}
        with matplotlib.rc_context(settings):
            figure = Figure(figsize=(4.9, _height_in(rows)), layout="constrained")
            _put(figure.subplots(), title, draw)
            out = io.StringIO()
            nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
            figure.savefig(out, format="svg", metadata=nothing)
        text = out.getvalue()
        found.append(text[text.index("<svg") :])
    return found


def write_png(path: Path, title: str, runs: Sequence[Run]) -> None:
    """Write all charts as one picture, two a row."""
    charts = charts_of(runs)
    pairs = [charts[first : first + 2] for first in range(0, len(charts), 2)]
    heights = [max(_height_in(rows) for _, rows, _ in pair) for pair in pairs]
    with matplotlib.rc_context({"text.parse_math": False}):
        figure = Figure(figsize=(10.4, sum(heights) + 0.5), layout="constrained")
        grid = figure.subplots(len(pairs), 2, squeeze=False, height_ratios=heights)
        for row, pair in zip(grid, pairs):
            for axes, (heading, _, draw) in zip(row, pair):
                _put(axes, heading, draw)
            for axes in row[len(pair) :]:
                axes.set_axis_off()
        figure.suptitle(title, fontweight="bold")
        figure.savefig(path, format="png", dpi=140)


def _height_in(rows: int) -> float:
    return max(2.9, 0.9 + 0.19 * rows)


def _put(axes: Axes, title: str, draw: Draw) -> None:
    axes.grid(linewidth=0.4)
    axes.set_title(title, fontsize=10, loc="left")
    axes.tick_params(labelsize=8)
    draw(axes)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8)


def _lines(
    told: Sequence[tuple[str, Curve]],
    over: str,
    form: Callable[[float, int], str] | None,
    axes: Axes,
) -> None:
    if not any(places for _, (places, _) in told):
        axes.text(0.5, 0.5, UNKNOWN, transform=axes.transAxes, ha="center")
    for name, (places, values) in told:
        axes.plot(places, values, label=name, marker="." if len(places) < 30 else "")
    if over == "seconds":
        axes.xaxis.set_major_formatter(FuncFormatter(in_time))
    if form is not None:
        axes.yaxis.set_major_formatter(FuncFormatter(form))


def _dots(runs: Sequence[Run], layers: Sequence[str], field: str, axes: Axes) -> None:
    has_values = False
    for number, run in enumerate(runs):
        told = run.tensors()
        rows = [i for i, key in enumerate(layers) if told.get(key, {}).get(field) is not None]
        values = [told[layers[row]][field] for row in rows]
        has_values = has_values or bool(values)
        axes.plot(values, rows, linestyle="", marker=".", color=f"C{number}", label=run.name)
    if not has_values:
        axes.text(0.5, 0.5, UNKNOWN, transform=axes.transAxes, ha="center")
    axes.set_yticks(range(len(layers)), layers)
    axes.set_ylim(len(layers) - 0.5, -0.5)
    axes.set_xlim(left=0)


def _bars(runs: Sequence[Run], axes: Axes) -> None:
    left = [0.0] * len(runs)
    for part in PARTS:
        seconds = [parts_of(run)[part] for run in runs]
        axes.barh([run.name for run in runs], seconds, left=left, label=part)
        left = [so_far + more for so_far, more in zip(left, seconds)]
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(FuncFormatter(in_time))


def parts_of(run: Run) -> dict[str, float]:
    """Return the seconds of each part of a step, at the median of the records behind the first.

    The rest is computing, the optimizer, dense tensors and waiting outside of exchanges.
    """
    records = run.records[1:] or run.records
    parts = {
        part: statistics.median(each["total"].get(f"{part}_s") or 0.0 for each in records)
        for part in PARTS[:-1]
    }
    whole = statistics.median(each["step_s"] for each in records)
    return {**parts, "rest": max(0.0, whole - sum(parts.values()))}


def _layers(runs: Sequence[Run]) -> list[str]:
    """Return the tensors that send most, in the order in which the network has them."""
    weights: dict[str, float] = {}
    order = dict.fromkeys(key for run in runs for key in run.about.get("shapes", {}))
    for run in runs:
        for key, told in run.tensors().items():
            weights[key] = max(weights.get(key, 0.0), told.get("bytes_sent") or 0.0)
    largest = sorted(weights, key=lambda key: -weights[key])[:MOST_LAYERS]
    places = {key: place for place, key in enumerate(order)}
    return sorted(largest, key=lambda key: places.get(key, len(places)))
