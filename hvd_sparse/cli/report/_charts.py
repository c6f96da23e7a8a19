"""The charts of a report: each draws one question about all runs into one pair of axes."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from hvd_sparse.cli.report._runs import Run
from hvd_sparse.untyped import Value

SERIES = ("#0b6bcb", "#d1490b", "#0a8a5f", "#a23b9c", "#a87900", "#3a8fb7", "#6b6b6b", "#b3243b")
DASHES = ("-", (0, (5, 2)), (0, (1, 1.4)), (0, (5, 1.5, 1, 1.5)))
MARKERS = ("o", "s", "^", "D")
PARTS = ("select", "encode", "exchange", "decode", "rest")
PART_COLOURS = ("#2f6fb5", "#e08a2b", "#b8443c", "#4f9a63", "#9a9a9a")
MOST_LAYERS = 40
UNKNOWN = "no exchange here knows it"
FEW_POINTS = 30
OVER = {"step": "step", "seconds": "time"}

Draw = Callable[[Axes, Sequence[Run]], None]


@dataclass(frozen=True)
class Chart:
    """One picture.

    Attributes
    ----------
    title : above it
    draw : into axes, what all runs tell
    rows : of labelled bars or dots, by which its height grows
    """

    title: str
    draw: Draw
    rows: int = 0


@dataclass(frozen=True)
class Section:
    """Charts that belong together, under a heading, with a sentence that says what they show."""

    heading: str
    words: str
    charts: tuple[Chart, ...]


def style_of(number: int) -> dict[str, Value]:
    """Return colour, dashes and marker of a run: no two of the first eight share colour and
    dashes."""
    return {
        "color": SERIES[number % len(SERIES)],
        "linestyle": DASHES[number % len(DASHES)],
        "marker": MARKERS[number % len(MARKERS)],
    }


def sections_of(runs: Sequence[Run]) -> list[Section]:
    """Return the sections for which some run has something to show."""
    names = list(dict.fromkeys(name for run in runs for name in run.metric_names()))
    metrics = [chart for name in names for chart in _over_both(name, _metric(name))]
    sent = _over_both("bytes sent", lambda run, over: run.bytes_sent(over))
    sections = [
        Section("Metrics", "What the program has logged.", tuple(metrics)),
        Section("Bytes sent", "By the rank that wrote, all in all.", sent),
    ]
    layers = _layers(runs)
    if layers:
        sections += [_densities(layers), _residuals(layers), _times(runs)]
    return [section for section in sections if section.charts]


def _metric(name: str) -> Callable[[Run, str], tuple[list[float], list[float]]]:
    return lambda run, over: run.metric(name, over)


def _over_both(
    title: str, curve: Callable[[Run, str], tuple[list[float], list[float]]]
) -> tuple[Chart, Chart]:
    """Return the charts of a quantity over steps and over time."""

    def chart(over: str) -> Chart:
        def draw(axes: Axes, runs: Sequence[Run]) -> None:
            _lines(axes, [curve(run, over) for run in runs], over)
            if "bytes" in title:
                axes.yaxis.set_major_formatter(FuncFormatter(_in_bytes))

        return Chart(f"{title.replace('_', ' ')} over {OVER[over]}", draw)

    return chart("step"), chart("seconds")


def _lines(axes: Axes, curves: Sequence[tuple[list[float], list[float]]], over: str) -> None:
    if not any(places for places, _ in curves):
        axes.text(0.5, 0.5, UNKNOWN, transform=axes.transAxes, ha="center")
    for number, (places, values) in enumerate(curves):
        style = style_of(number)
        if len(places) > FEW_POINTS:
            style["marker"] = ""
        axes.plot(places, values, markersize=3.5, linewidth=1.6, **style)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=over == "step"))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    if over == "seconds":
        axes.xaxis.set_major_formatter(FuncFormatter(_in_time))
    else:
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _densities(layers: Sequence[str]) -> Section:
    def over_steps(axes: Axes, runs: Sequence[Run]) -> None:
        _lines(axes, [run.total("density_achieved") for run in runs], "step")
        for number, run in enumerate(runs):
            places, values = run.total("density_asked")
            axes.plot(places, values, linewidth=0.8, color=SERIES[number % len(SERIES)], alpha=0.5)
        axes.yaxis.set_major_formatter(FuncFormatter(_in_percent))
        axes.set_ylim(bottom=0)

    return Section(
        "Density",
        "Part of the entries that was sent; thin lines are what was asked for. By layer: at the "
        "last record, the tensors that send most.",
        (
            Chart("density over step", over_steps),
            _by_layer("density by layer", "density_achieved", layers, _in_percent),
        ),
    )


def _residuals(layers: Sequence[str]) -> Section:
    return Section(
        "Residual",
        "L2 norm of what was not sent yet: it should level off.",
        (
            Chart(
                "residual norm over step",
                lambda axes, runs: _lines(
                    axes, [run.total("residual_norm") for run in runs], "step"
                ),
            ),
            _by_layer("residual norm by layer", "residual_norm", layers, None),
        ),
    )


def _by_layer(
    title: str, name: str, layers: Sequence[str], form: Callable[[float, int], str] | None
) -> Chart:
    def draw(axes: Axes, runs: Sequence[Run]) -> None:
        all_values: list[float] = []
        telling = [number for number, run in enumerate(runs) if run.tensors()]
        for place, number in enumerate(telling):
            told, style = runs[number].tensors(), style_of(number)
            rows = [i for i, key in enumerate(layers) if told.get(key, {}).get(name) is not None]
            offset = 0.6 * ((place + 0.5) / len(telling) - 0.5)
            values = [told[layers[row]][name] for row in rows]
            all_values.extend(values)
            axes.plot(
                values,
                [row + offset for row in rows],
                linestyle="",
                marker=style["marker"],
                color=style["color"],
                markersize=4,
            )
        axes.set_yticks(range(len(layers)), [_shortened(key) for key in layers])
        axes.set_ylim(len(layers) - 0.5, -0.5)
        if all_values:
            axes.set_xlim(0, 1.05 * max(all_values) or 1.0)
        else:
            axes.text(0.5, 0.5, UNKNOWN, transform=axes.transAxes, ha="center")
        axes.xaxis.set_major_locator(MaxNLocator(4))
        if form is not None:
            axes.xaxis.set_major_formatter(FuncFormatter(form))

    return Chart(title, draw, rows=len(layers))


def _times(runs: Sequence[Run]) -> Section:
    def draw(axes: Axes, runs: Sequence[Run]) -> None:
        told = [run for run in runs if run.records]
        for row, run in enumerate(told):
            left, parts = 0.0, parts_of(run)
            for part, colour in zip(PARTS, PART_COLOURS):
                axes.barh(row, parts[part], left=left, color=colour, height=0.62)
                left += parts[part]
        for part, colour in zip(PARTS, PART_COLOURS):
            axes.barh(0, 0, color=colour, label=part)
        axes.set_yticks(range(len(told)), [_shortened(run.name) for run in told])
        axes.set_ylim(len(told) - 0.5, -0.5)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.xaxis.set_major_formatter(FuncFormatter(_in_time))
        axes.legend(
            loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=3, frameon=False, fontsize=8
        )

    count = sum(bool(run.records) for run in runs)
    return Section(
        "Where time goes",
        "Seconds of a step, at the median of the records. Rest is computing, the optimizer, dense "
        "tensors and waiting for others outside of exchanges; exchanges overlap with it.",
        (Chart("seconds of a step", draw, rows=2 * count + 4),),
    )


def parts_of(run: Run) -> dict[str, float]:
    """Return the seconds of each part of a step, at the median of the records behind the first."""
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
    order: dict[str, int] = {}
    for run in runs:
        for number, key in enumerate(run.about.get("shapes", {})):
            order.setdefault(key, number)
        for key, told in run.tensors().items():
            weights[key] = max(weights.get(key, 0.0), told.get("bytes_sent") or 0.0)
    largest = sorted(weights, key=lambda key: -weights[key])[:MOST_LAYERS]
    return sorted(largest, key=lambda key: order.get(key, len(order)))


def _shortened(name: str, most: int = 26) -> str:
    """Return a name without its middle: layers differ at their beginnings and ends."""
    if len(name) <= most:
        return name
    return f"{name[: most // 2 - 1]}…{name[-(most // 2) :]}"


def _in_percent(value: float, _: int) -> str:
    return f"{100 * value:.3g} %"


def _in_bytes(value: float, _: int = 0) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(value) < 1000 or unit == "TB":
            break
        value /= 1000
    return f"{value:.3g} {unit}"


def _in_time(value: float, _: int = 0) -> str:
    if value >= 3600:
        return f"{value / 3600:.3g} h"
    if value >= 120:
        return f"{value / 60:.3g} min"
    return f"{value:.3g} s" if value >= 1 or value == 0 else f"{1000 * value:.3g} ms"
