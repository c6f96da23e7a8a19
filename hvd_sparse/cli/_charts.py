"""The charts of ``hvd-sparse report``: each answers one question about all runs."""

from __future__ import annotations

import io
import statistics
from collections.abc import Callable, Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from hvd_sparse.cli._runs import Curve, Run, in_bytes, in_time

PARTS = ("select", "encode", "exchange", "decode", "rest")
MOST_LAYERS = 40
UNKNOWN = "no exchange here knows it"
FIELDS = (("density", "density_achieved"), ("residual norm", "residual_norm"))


def pictures_of(runs: Sequence[Run]) -> list[str]:
    """Return, as SVG, the charts for which at least one run has data."""
    found: list[str] = []

    def draw(title: str, how: Callable[[Axes], None], rows: int = 0) -> None:
        found.append(_picture(title, how, rows, len(found)))

    def compare(title: str, curve: Callable[[Run, str], Curve], over: str = "step") -> None:
        told = {run.name: curve(run, over) for run in runs}
        word = "time" if over == "seconds" else over
        draw(f"{title} over {word}", lambda axes: _lines(axes, told, over, title))

    for name in dict.fromkeys(name for run in runs for name in run.metric_names()):
        for over in ("step", "seconds"):
            compare(name.replace("_", " "), lambda run, over: run.metric(name, over), over)  # noqa: B023 - called at once
    for over in ("step", "seconds"):
        compare("bytes sent", Run.bytes_sent, over)
    layers, recorded = _layers(runs), [run for run in runs if run.records]
    if layers:
        for title, field in FIELDS:
            compare(title, lambda run, over: run.total(field, over))  # noqa: B023
            draw(
                f"{title} by layer",
                lambda axes: _dots(axes, runs, layers, field),  # noqa: B023
                len(layers),
            )
        draw("seconds of a step", lambda axes: _bars(axes, recorded), len(recorded))
    return found


def _picture(title: str, draw: Callable[[Axes], None], rows: int, number: int) -> str:
    # the salt keeps the names inside one picture from being another's
    settings = {"svg.fonttype": "none", "svg.hashsalt": f"{number}", "text.parse_math": False}
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(4.9, max(2.9, 0.9 + 0.19 * rows)), layout="constrained")
        axes = figure.subplots()
        axes.grid(linewidth=0.4)
        axes.set_title(title, fontsize=10, loc="left")
        axes.tick_params(labelsize=8)
        draw(axes)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=8)
        if not axes.has_data():
            axes.text(0.5, 0.5, UNKNOWN, transform=axes.transAxes, ha="center")
        out = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(out, format="svg", metadata=nothing)
    text = out.getvalue()
    return text[text.index("<svg") :]


def _lines(axes: Axes, told: dict[str, Curve], over: str, title: str) -> None:
    for name, (places, values) in told.items():
        if places:
            axes.plot(places, values, label=name, marker="." if len(places) < 30 else "")
    if over == "seconds":
        axes.xaxis.set_major_formatter(FuncFormatter(in_time))
    if title == "bytes sent":
        axes.yaxis.set_major_formatter(FuncFormatter(in_bytes))


def _dots(axes: Axes, runs: Sequence[Run], layers: Sequence[str], field: str) -> None:
    for number, run in enumerate(runs):
        told = run.tensors()
        rows = [i for i, key in enumerate(layers) if told.get(key, {}).get(field) is not None]
        values = [told[layers[row]][field] for row in rows]
        if rows:
            axes.plot(values, rows, linestyle="", marker=".", color=f"C{number}", label=run.name)
    axes.set_yticks(range(len(layers)), layers)
    axes.set_ylim(len(layers) - 0.5, -0.5)
    axes.set_xlim(left=0)


def _bars(axes: Axes, runs: Sequence[Run]) -> None:
    left = [0.0] * len(runs)
    for part in PARTS:
        seconds = [parts_of(run)[part] for run in runs]
        axes.barh([run.name for run in runs], seconds, left=left, label=part)
        left = [so_far + more for so_far, more in zip(left, seconds)]
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(FuncFormatter(in_time))


def parts_of(run: Run) -> dict[str, float]:
    """Return the seconds of each part of a step: the median over all records but the first.

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
    for run in runs:
        for key, told in run.tensors().items():
            weights[key] = max(weights.get(key, 0.0), told.get("bytes_sent") or 0.0)
    largest = sorted(weights, key=lambda key: -weights[key])[:MOST_LAYERS]
    order = [key for run in runs for key in run.about.get("shapes", {})]
    return sorted(largest, key=lambda key: order.index(key) if key in order else len(order))
