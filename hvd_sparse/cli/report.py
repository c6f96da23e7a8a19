"""The command ``hvd-sparse report``: compares runs with telemetry="jsonl" in one HTML file."""

from __future__ import annotations

import argparse
import html
import io
import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hvd_sparse.cli.output import write_output
from hvd_sparse.errors import InvalidOption
from hvd_sparse.telemetry.contract import COMMON_FIELDS
from hvd_sparse.types import Report

PARTS = ("select", "encode", "exchange", "decode", "step")
MOST_LAYERS = 40

Curve = tuple[list[float], list[Any]]
"""Steps or seconds, and the values there; or values, and the names of their rows."""

STYLE = """
body { max-width: 1220px; margin: auto; padding: 20px; font-family: sans-serif; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
td { padding: 6px 14px; text-align: right; white-space: nowrap; border-top: 1px solid #dfe3e8; }
main { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr)); }
svg { width: 100%; height: auto; }
"""


def set_up(parser: argparse.ArgumentParser) -> None:
    files = "a file of telemetry='jsonl', NAME=FILE, or a folder with such files"
    parser.add_argument("runs", nargs="+", metavar="RUN", help=files)
    page = "HTML file to write (default: %(default)s)"
    parser.add_argument("-o", "--output", type=Path, default="report.html", help=page)
    parser.add_argument("--title", default="hvd_sparse report", help="title of the page")


def run(options: argparse.Namespace) -> int:
    runs = read_runs(options.runs)
    try:
        page = page_of(options.title, runs)
    except ImportError as error:
        raise InvalidOption(
            f"hvd-sparse report draws with {error.name}, which is not installed: "
            "pip install 'hvd-sparse[plot]'"
        ) from None
    output = write_output(options.output, page, [run.path for run in runs])
    print(f"{len(runs)} run{'s' * (len(runs) > 1)}; open {output} in a browser")
    return 0


@dataclass
class Run:
    """The records of a run: the last "run" record (empty without a compressor), and all others."""

    name: str
    path: Path
    about: Report
    records: list[Report]

    def of(self, event: str) -> list[Report]:
        return [each for each in self.records if each["event"] == event]

    def curve(self, name: str, over: str, event: str = "metrics") -> Curve:
        """Return the values of a metric or, of "step" records, of a total, over "step" or
        "seconds". If a step has several values, use the last."""
        last = {each["step"]: each for each in self.of(event) if name in each}
        known = [each for each in last.values() if each[name] is not None]
        return [each[over] for each in known], [each[name] for each in known]

    def bytes_sent(self, over: str) -> Curve:
        """Return the bytes sent so far. Without a compressor, a metric has the bytes of a step."""
        event = "step" if self.of("step") else "metrics"
        steps, a_step = self.curve("bytes_sent", "step", event)
        sent = np.cumsum(np.diff(steps, prepend=0) * a_step)
        return self.curve("bytes_sent", over, event)[0], sent.tolist()

    def by_layer(self, name: str) -> Curve:
        """Return a field of each layer in the last "step" record."""
        tensors = self.of("step")[-1]["tensors"] if self.of("step") else {}
        layers = self.about.get("layers", ())
        known = [key for key in layers if tensors.get(key, {}).get(name) is not None]
        return [tensors[key][name] for key in known], known

    def by_part(self) -> Curve:
        """Return the median seconds of each part of a step, and of the whole step."""
        seconds = {part: self.curve(f"{part}_s", "step", "step")[1] for part in PARTS}
        known = [part for part in PARTS if seconds[part]]  # first calls compile, so leave them out
        return [float(np.median(seconds[part][1:] or seconds[part])) for part in known], known

    @property
    def bytes_a_step(self) -> float | None:
        steps, sent = self.bytes_sent("step")
        return sent[-1] / steps[-1] if any(steps) else None

    @property
    def step_s(self) -> float | None:
        """Mean seconds of a step; None if all records are of the same step."""
        steps, seconds = (np.ptp([each[x] for each in self.records]) for x in ("step", "seconds"))
        return float(seconds / steps) if steps else None


def read_runs(given: Sequence[str]) -> list[Run]:
    """Return the runs that the arguments name: files, ``NAME=FILE``, or folders, which stand for
    all their ``.jsonl`` files. Raises InvalidOption if two runs have the same name."""
    found: dict[str, Path] = {}
    for each in given:
        name, path = _split(each)
        inside = Path(path).glob("*.jsonl") if os.path.isdir(path) else ()
        for file in sorted(inside) or [Path(path)]:
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
    found = list(_records_in(path))
    abouts = [each for each in found if each["event"] == "run"]
    names = list(dict.fromkeys(str(each["name"]) for each in abouts if each.get("name")))
    if len(names) > 1:
        raise InvalidOption(
            f"run {str(path)!r} has records of two compressors, {names[0]!r} and {names[1]!r}: "
            "give the writer of each compressor a path of its own"
        )
    records: list[Report] = []
    later: list[Report] = []
    for each in found:
        # The "seconds" of a restart begin at 0. Without a compressor, it has no "run" record.
        if each["event"] == "run" or (later and each["seconds"] < later[-1]["seconds"]):
            records, later = _continued(records, later), []
        later.append(each)
    records = _continued(records, later)
    if not records:
        raise InvalidOption(
            f"run {str(path)!r} has no records: train at least one step with telemetry='jsonl'"
        )
    return Run(name, path, abouts[-1] if abouts else {}, records)


def _continued(earlier: Sequence[Report], later: Sequence[Report]) -> list[Report]:
    """Return the records before a restart, without those that the restart repeated, and those after
    it. Steps and metrics are compared separately, because a program may number its metrics by steps
    of its own. Before the restart has records of a kind, its "run" record tells where it began."""
    firsts = {each["event"]: each["step"] for each in reversed(later)}
    usual = (firsts.get("run") or math.inf) + 1
    kept = [each for each in earlier if each["step"] < firsts.get(each["event"], usual)]
    offset_s = max((each["seconds"] for each in kept), default=0.0)
    moved = [{**each, "seconds": each["seconds"] + offset_s} for each in later]
    return kept + [each for each in moved if each["event"] != "run"]


def _records_in(path: Path) -> Iterator[Report]:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise InvalidOption(
            f"run {str(path)!r} cannot be read: {error.strerror}; give .jsonl files or their folder"
        ) from None
    for number, line in enumerate(lines, 1):
        where = f"line {number} of run {str(path)!r}"
        try:
            yield _record_of(line)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if number > 1 and isinstance(error, json.JSONDecodeError):
                print(f"{where} is incomplete and was left out", file=sys.stderr)
                continue
            raise InvalidOption(
                f"{where} is not a record ({error!r}): give files of telemetry='jsonl'"
            ) from None


def _record_of(line: str) -> Report:
    """Return the record in a line. Add the totals of a step to the record's own fields, and to a
    "run" record the method and its largest layers, in the order of the model."""
    record: Report = json.loads(line)
    event, needed = record["event"], ["step", "seconds"]
    groups = [record] if event == "metrics" else []
    if event == "run":
        record["method"] = record.get("config", {}).get("selector", {}).get("id")
        sizes = {key: math.prod(shape) for key, shape in record.get("shapes", {}).items()}
        largest = sorted(sizes, key=sizes.__getitem__)[-MOST_LAYERS:]
        record["layers"] = [key for key in sizes if key in largest]
    elif event == "step":
        needed += ["step_s", "bytes_sent"]
        groups = [record["total"], *record["tensors"].values()]
        record |= record["total"]
    elif event != "metrics":
        raise ValueError(f"the event {event!r} is unknown")
    known = [pair for group in groups for pair in group.items() if pair[1] is not None]
    for name, value in [*known, *((name, record[name]) for name in needed)]:
        if not isinstance(value, (int, float)) and name != "event":
            raise ValueError(f"{name!r} is {value!r}, not a number")
    return record


def _charts_of(runs: Sequence[Run]) -> Iterator[tuple[str, dict[str, Curve]]]:
    """Yield the title of each picture, and the curves of the runs by their names."""
    names = dict.fromkeys(name for run in runs for each in run.of("metrics") for name in each)
    for name in [each for each in names if each not in COMMON_FIELDS | {"bytes_sent"}]:
        title = name.replace("_", " ")
        for over in ("step", "seconds"):
            yield f"{title} over {over}", {run.name: run.curve(name, over) for run in runs}
    for over in ("step", "seconds"):
        yield f"bytes sent over {over}", {run.name: run.bytes_sent(over) for run in runs}
    if any(run.of("step") for run in runs):
        for title, name in (("density", "density_achieved"), ("residual norm", "residual_norm")):
            yield f"{title} over step", {run.name: run.curve(name, "step", "step") for run in runs}
            yield f"{title} by layer", {run.name: run.by_layer(name) for run in runs}
        yield "seconds per step", {run.name: run.by_part() for run in runs}


def _picture(title: str, curves: dict[str, Curve]) -> str:
    import matplotlib
    from matplotlib.figure import Figure

    rows = {name for _, names in curves.values() for name in names if isinstance(name, str)}
    # The salt makes the ids in the SVGs differ, because all pictures are in one HTML file.
    settings = {"svg.fonttype": "none", "svg.hashsalt": title, "text.parse_math": False}
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(4.9, max(2.9, 0.9 + 0.19 * len(rows))), layout="constrained")
        axes = figure.subplots()
        axes.grid(linewidth=0.4)
        axes.set_title(title, fontsize=10, loc="left")
        axes.tick_params(labelsize=8)
        for number, (name, (x, y)) in enumerate(curves.items()):
            if x:
                marks = "." if rows else ".-" if len(x) < 30 else "-"  # marks make the file large
                axes.plot(x, y, marks, color=f"C{number}", label=name)
        if rows:
            axes.invert_yaxis()
            axes.set_xlim(left=0)
        if axes.has_data():
            axes.legend(fontsize=8)
        else:
            axes.text(0.5, 0.5, "no run recorded this value", transform=axes.transAxes, ha="center")
        out = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(out, format="svg", metadata=nothing)
    return "<svg" + out.getvalue().partition("<svg")[2]


def page_of(title: str, runs: Sequence[Run]) -> str:
    rows = [[html.escape(cell) for cell in row] for row in table_of(runs)]
    table = "".join(f"<tr><td>{'</td><td>'.join(row)}</td></tr>" for row in rows)
    pictures = "".join(_picture(*chart) for chart in _charts_of(runs))
    title = html.escape(title)
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>
<meta name="viewport" content="width=device-width, initial-scale=1">
<h1>{title}</h1><table>{table}</table><main>{pictures}</main></html>
"""


def table_of(runs: Sequence[Run]) -> list[list[str]]:
    """Return the rows, the first with headings. The last columns are the curves' last values."""
    columns = [
        ["run", *(run.name for run in runs)],
        ["method", *(run.about.get("method") for run in runs)],
        ["ranks", *(run.about.get("world_size") for run in runs)],
        ["steps", *(max(each["step"] for each in run.records) for run in runs)],
        ["seconds per step", *(run.step_s for run in runs)],
        ["bytes per step", *(run.bytes_a_step for run in runs)],
    ]
    for title, curves in _charts_of(runs):
        if title.endswith(" over step"):
            ends = [values[-1] if values else None for _, values in curves.values()]
            columns.append([title.removesuffix(" over step"), *ends])
    return [[_cell(value) for value in row] for row in zip(*columns)]


def _cell(value: object) -> str:
    if isinstance(value, (int, float)):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return "-" if value is None else str(value)
