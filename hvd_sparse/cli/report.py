"""The command ``hvd-sparse report``: compares runs with telemetry="jsonl" in one HTML file."""

from __future__ import annotations

import argparse
import html
import io
import json
import math
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from hvd_sparse.cli.output import write_output
from hvd_sparse.errors import InvalidOption
from hvd_sparse.telemetry.contract import COMMON_FIELDS
from hvd_sparse.types import Report
from hvd_sparse.version import __version__

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NEEDED = ("step", "seconds", "step_s")
SENT = "bytes_sent"
"""The metric with which a run without a compressor reports the bytes that it sent."""

Curve = tuple[list[float], list[float]]
"""The points of a curve: their steps or seconds, and their values."""
PARTS = ("select", "encode", "exchange", "decode", "rest")
MOST_LAYERS = 40
UNKNOWN = "no run recorded this value"
FIELDS = (("density", "density_achieved"), ("residual norm", "residual_norm"))

STYLE = """
body { max-width: 1220px; margin: auto; padding: 20px; font-family: sans-serif;
  color: #1b1f24; background: #ffffff; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { padding: 6px 14px; text-align: right; white-space: nowrap; border-top: 1px solid #dfe3e8; }
th:first-child, td:first-child { text-align: left; }
main { display: grid; gap: 16px;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr)); }
figure { margin: 0; max-width: 600px; }
figure svg { display: block; width: 100%; height: auto; }
"""


def set_up(parser: argparse.ArgumentParser) -> None:
    files = "a file of telemetry='jsonl', NAME=FILE, or a folder with such files"
    parser.add_argument("runs", nargs="+", metavar="RUN", help=files)
    output = Path("report.html")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=output,
        help="HTML file to write (default: %(default)s)",
    )
    parser.add_argument(
        "--title", default="hvd_sparse report", help="title of the page (default: %(default)s)"
    )


def run(options: argparse.Namespace) -> int:
    runs = read_runs(options.runs)
    try:
        pictures = [_picture(number, *chart) for number, chart in enumerate(_charts_of(runs))]
    except ImportError as error:
        raise InvalidOption(
            f"hvd-sparse report draws with {error.name}, which is not installed: "
            "pip install 'hvd-sparse[plot]'"
        ) from None
    page = page_of(options.title, runs, pictures)
    output = write_output(options.output, page, [run.path for run in runs])
    print(f"{len(runs)} run{'s' * (len(runs) > 1)}; open {output} in a browser")
    return 0


@dataclass
class Run:
    """The records of one run.

    about : the "run" record; empty if the run had no compressor
    records : the "step" and "metrics" records, in order
    """

    name: str
    path: Path
    about: Report = field(default_factory=dict)
    records: list[Report] = field(default_factory=list)

    def of(self, event: str) -> list[Report]:
        return [each for each in self.records if each["event"] == event]

    def curve(self, name: str, over: str, event: str = "metrics") -> Curve:
        """Return the values of a metric or, of "step" records, of a total, over "step" or
        "seconds". If a step has several values, use the last."""
        points = {}
        for each in self.of(event):
            values = each["total"] if event == "step" else each
            if name in values:
                points[each["step"]] = each[over], values[name]
        known = [point for point in points.values() if point[1] is not None]
        return [place for place, _ in known], [value for _, value in known]

    def bytes_sent(self, over: str) -> Curve:
        """Return a curve: the bytes sent since the run's start, over "step" or "seconds"."""
        event = "step" if self.of("step") else "metrics"
        steps, a_step = self.curve(SENT, "step", event)
        counts = [after - before for before, after in pairwise([0, *steps])]
        sent = [nbytes * count for nbytes, count in zip(a_step, counts)]
        return self.curve(SENT, over, event)[0], list(accumulate(sent))

    def tensors(self) -> dict[str, Report]:
        return self.of("step")[-1]["tensors"] if self.of("step") else {}

    @property
    def steps(self) -> int:
        return max((each["step"] for each in self.records), default=0)

    @property
    def step_s(self) -> float | None:
        """Mean seconds of a step, from the first to the last record; None if both are of the same
        step."""
        told = sorted(self.records, key=lambda each: each["step"])
        steps: int = told[-1]["step"] - told[0]["step"]
        seconds: float = told[-1]["seconds"] - told[0]["seconds"]
        return seconds / steps if steps else None


def _metrics_of(runs: Sequence[Run]) -> list[str]:
    names = dict.fromkeys(name for run in runs for each in run.of("metrics") for name in each)
    return [name for name in names if name not in COMMON_FIELDS | {SENT}]


def read_runs(given: Sequence[str]) -> list[Run]:
    """Return the runs that the arguments name: files, ``NAME=FILE``, or folders, which stand for
    all their ``.jsonl`` files. Raises InvalidOption if two runs have the same name."""
    found: dict[str, Path] = {}
    for each in given:
        name, path = _split(each)
        files = sorted(Path(path).glob("*.jsonl")) if os.path.isdir(path) else [Path(path)]
        if not files:
            raise InvalidOption(
                f"run {each!r} is a folder without .jsonl files, or may not be read: give another "
                "folder or a file"
            )
        for file in files:
            # matplotlib and UTF-8 cannot write the bytes of names in other encodings.
            label = (name or file.stem).encode(errors="replace").decode()
            if label in found:
                raise InvalidOption(
                    f"two runs are called {label!r}: give one of them another name, for example "
                    f"other={file}"
                )
            found[label] = file
    return [read_run(name, path) for name, path in found.items()]


def _split(given: str) -> tuple[str, str]:
    """Return the name and the path in an argument of the form ``NAME=FILE`` or ``FILE``. Without a
    name, the name is "". Both may contain "=": the path is the longest one that exists. If none
    exists, it begins after the first "="."""
    parts = given.split("=")
    splits = [("=".join(parts[:n]), "=".join(parts[n:])) for n in range(len(parts))]
    return next((each for each in splits if os.path.exists(each[1])), splits[:2][-1])


def read_run(name: str, path: Path) -> Run:
    """Return the run in a file. If a restart repeated steps, the later records replace the earlier
    ones. Raises InvalidOption if the file cannot be read or has no records."""
    run, last_s = Run(name, path), 0.0
    starts: list[tuple[int, list[Report]]] = [(0, [])]
    """For each start of the program, the number of steps completed before, 0 if it is unknown, and
    the records after it."""
    for record in _records_in(path):
        is_about = record["event"] == "run"
        # The "seconds" of a restart begin at 0. Its first record is "run" or, without a compressor,
        # one of metrics.
        if is_about or record["seconds"] < last_s:
            starts.append((record["step"] if is_about else 0, []))
            last_s = 0.0
        if is_about:
            names = [about.get("name") for about in (run.about or record, record)]
            if None not in names and names[0] != names[1]:
                raise InvalidOption(
                    f"run {str(path)!r} has records of two compressors, {names[0]!r} and "
                    f"{names[1]!r}: give the writer of each compressor a path of its own"
                )
            run.about = record
            continue
        if record["event"] == "metrics":
            last_s = record["seconds"]
        starts[-1][1].append(record)
    for before, later in starts:
        run.records = _continued(run.records, before, later)
    if not run.records:
        raise InvalidOption(
            f"run {str(path)!r} has no records: train at least one step with telemetry='jsonl'"
        )
    return run


def _records_in(path: Path) -> Iterator[Report]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not a text file"
        raise InvalidOption(
            f"run {str(path)!r} cannot be read: {why}; give files that telemetry='jsonl' wrote"
        ) from None
    for number, line in enumerate(lines, 1):
        try:
            yield _record_of(line)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if number > 1 and isinstance(error, json.JSONDecodeError):
                note = f"line {number} of run {str(path)!r} is incomplete and was left out"
                print(note, file=sys.stderr)
                continue
            raise InvalidOption(
                f"line {number} of run {str(path)!r} is not a record ({type(error).__name__}: "
                f"{error}): give files that telemetry='jsonl' wrote"
            ) from None


def _continued(earlier: Sequence[Report], before: int, later: Sequence[Report]) -> list[Report]:
    """Return the records before a restart, without those that the restart repeated, and those after
    it. Steps and metrics are compared separately, because a program may number its metrics by steps
    of its own. If the restart has no records of a kind yet, ``before`` tells where it began."""
    firsts: dict[str, int] = {}
    for each in later:
        firsts.setdefault(each["event"], each["step"])
    usual = before + 1 if before else math.inf
    kept = [each for each in earlier if each["step"] < firsts.get(each["event"], usual)]
    offset_s = max((each["seconds"] for each in kept), default=0.0)
    return [*kept, *({**each, "seconds": each["seconds"] + offset_s} for each in later)]


def _record_of(line: str) -> Report:
    record: Report = json.loads(line)
    measured = {"seconds": record["seconds"], "step": record["step"]}
    if record["event"] == "run":
        record.get("config", {}).get("selector", {}).get("id")
        list(record.get("shapes", {}).keys())
    elif record["event"] == "metrics":
        measured = {name: record[name] for name in record if name != "event"}
    elif record["event"] == "step":
        measured |= {"step_s": record["step_s"], SENT: record["total"][SENT]}
        for fields in (record["total"], *record["tensors"].values()):
            measured |= {name: value for name, value in fields.items() if value is not None}
    else:
        raise ValueError(f"the event {record['event']!r} is unknown")
    for name, value in measured.items():
        if not isinstance(value, (int, float)) and (value is not None or name in NEEDED):
            raise ValueError(f"{name!r} is {value!r}, not a number")
    return record


def in_bytes(value: float, _: float = 0.0) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(value) < 1000 or unit == "TB":
            break
        value /= 1000
    return f"{value:.3g} {unit}"


def in_time(value: float, _: float = 0.0) -> str:
    if value >= 3600:
        return f"{value / 3600:.3g} h"
    if value >= 120:
        return f"{value / 60:.3g} min"
    return f"{value:.3g} s" if value >= 1 or value == 0 else f"{1000 * value:.3g} ms"


def _charts_of(runs: Sequence[Run]) -> Iterator[tuple[str, int, Callable[[Axes], None]]]:
    curves: dict[str, Callable[..., Curve]] = {
        name.replace("_", " "): partial(Run.curve, name=name) for name in _metrics_of(runs)
    }
    curves["bytes sent"] = Run.bytes_sent
    for title in curves:
        yield f"{title} over step", 0, partial(_lines, runs, title, curves[title], "step")
        yield f"{title} over time", 0, partial(_lines, runs, title, curves[title], "seconds")
    layers, recorded = _layers(runs), [run for run in runs if run.of("step")]
    if not layers:
        return
    for title, name in FIELDS:
        total = partial(Run.curve, name=name, event="step")
        yield f"{title} over step", 0, partial(_lines, runs, title, total, "step")
        yield f"{title} by layer", len(layers), partial(_dots, runs, layers, name)
    yield "seconds per step", len(recorded), partial(_bars, recorded)


def _picture(number: int, title: str, rows: int, draw: Callable[[Axes], None]) -> str:
    import matplotlib
    from matplotlib.figure import Figure

    # The salt makes the ids in the SVGs differ, because all pictures are in one HTML file.
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


def _lines(
    runs: Sequence[Run], title: str, curve: Callable[..., Curve], over: str, axes: Axes
) -> None:
    for run in runs:
        places, values = curve(run, over=over)
        if places:
            axes.plot(places, values, label=run.name, marker="." if len(places) < 30 else "")
    if over == "seconds":
        axes.xaxis.set_major_formatter(in_time)
    if title == "bytes sent":
        axes.yaxis.set_major_formatter(in_bytes)


def _dots(runs: Sequence[Run], layers: Sequence[str], name: str, axes: Axes) -> None:
    for number, run in enumerate(runs):
        told = run.tensors()
        rows = [i for i, key in enumerate(layers) if told.get(key, {}).get(name) is not None]
        values = [told[layers[row]][name] for row in rows]
        if rows:
            axes.plot(values, rows, linestyle="", marker=".", color=f"C{number}", label=run.name)
    axes.set_yticks(range(len(layers)), layers)
    axes.set_ylim(len(layers) - 0.5, -0.5)
    axes.set_xlim(left=0)


def _bars(runs: Sequence[Run], axes: Axes) -> None:
    left = [0.0] * len(runs)
    for part in PARTS:
        seconds = [_parts_of(run)[part] for run in runs]
        axes.barh([run.name for run in runs], seconds, left=left, label=part)
        left = [so_far + more for so_far, more in zip(left, seconds)]
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(in_time)


def _parts_of(run: Run) -> dict[str, float]:
    """Return the median seconds of each part of a step, and of the rest of the step, by name. If
    there are several records, the first is ignored, because first calls compile."""
    records = run.of("step")[1:] or run.of("step")
    parts = {
        part: statistics.median(each["total"].get(f"{part}_s") or 0.0 for each in records)
        for part in PARTS[:-1]
    }
    whole = statistics.median(each["step_s"] for each in records)
    return {**parts, "rest": max(0.0, whole - sum(parts.values()))}


def _layers(runs: Sequence[Run]) -> list[str]:
    weights: dict[str, float] = {}
    for run in runs:
        for key, told in run.tensors().items():
            weights[key] = max(weights.get(key, 0.0), told.get("bytes_sent") or 0.0)
    largest = sorted(weights, key=lambda key: -weights[key])[:MOST_LAYERS]
    order = [key for run in runs for key in run.about.get("shapes", {})]
    return sorted(largest, key=lambda key: order.index(key) if key in order else len(order))


def page_of(title: str, runs: Sequence[Run], pictures: Sequence[str]) -> str:
    headings, *rows = [[html.escape(cell) for cell in row] for row in table_of(runs)]
    head = "".join(f"<th>{cell}</th>" for cell in headings)
    body = "".join("<tr>" + "".join(f"<td>{c}</td>" for c in row) + "</tr>" for row in rows)
    figures = "".join(f"<figure>{picture}</figure>" for picture in pictures)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>"
        f"<h1>{html.escape(title)}</h1><table><tr>{head}</tr>{body}</table><main>{figures}</main>"
        f"<footer>Written by hvd-sparse report {__version__}.</footer></body></html>\n"
    )


def table_of(runs: Sequence[Run]) -> list[list[str]]:
    names = _metrics_of(runs)
    rows = [["run", "method", "ranks", "steps", *(name.replace("_", " ") for name in names)]]
    rows[0] += ["density", "bytes per step", "times smaller", "time per step"]
    totals = [run.bytes_sent("step") for run in runs]
    sent = [values[-1] / steps[-1] if steps and steps[-1] else 0.0 for steps, values in totals]
    for run, nbytes in zip(runs, sent):
        ends = [run.curve(name, "step")[1][-1:] for name in names]
        densities = run.curve("density_achieved", "step", "step")[1]
        rows.append(
            [
                run.name,
                run.about.get("config", {}).get("selector", {}).get("id", "-"),
                str(run.about.get("world_size", "-")),
                f"{run.steps:,}",
                *(f"{end[0]:.4g}" if end else "-" for end in ends),
                f"{densities[-1]:.3g}" if densities else "-",
                in_bytes(nbytes) if nbytes else "-",
                f"{max(sent) / nbytes:.3g}" if nbytes else "-",
                "-" if run.step_s is None else in_time(run.step_s),
            ]
        )
    return rows
