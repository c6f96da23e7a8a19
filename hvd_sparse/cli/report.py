"""The command ``hvd-sparse report``: compares runs, read from their JSON lines, on one page."""

from __future__ import annotations

import argparse
import html
import importlib
from collections.abc import Sequence
from pathlib import Path

from hvd_sparse.cli._runs import Run, in_bytes, in_time, read_runs
from hvd_sparse.errors import InvalidOption
from hvd_sparse.version import __version__

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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's arguments to its parser."""
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="a file of JSON lines, NAME=FILE, or a folder of such files",
    )
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("report.html"), help="(%(default)s)"
    )
    parser.add_argument("--title", default="hvd_sparse report", help="(%(default)s)")


def run(options: argparse.Namespace) -> int:
    """Run the sub-command; return its exit code."""
    runs = read_runs(options.runs)
    try:
        charts = importlib.import_module("hvd_sparse.cli._charts")
    except ImportError as error:
        raise InvalidOption(
            f"hvd-sparse report draws with {error.name}, which is not installed: "
            "pip install 'hvd-sparse[plot]'"
        ) from None
    page = page_of(options.title, runs, charts.pictures_of(runs))
    try:
        options.output.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InvalidOption(
            f"{str(error.filename)!r} cannot be written: {error.strerror}; name another file with "
            "--output"
        ) from None
    print(f"{len(runs)} run{'s' * (len(runs) > 1)}; open {options.output} in a browser")
    return 0


def page_of(title: str, runs: Sequence[Run], pictures: Sequence[str]) -> str:
    """Return the HTML, which loads nothing from a network; ``pictures`` are SVG."""
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
    """Return the rows of the table, headings first."""
    names = list(dict.fromkeys(name for run in runs for name in run.metric_names()))
    rows = [["run", "method", "ranks", "steps", *(name.replace("_", " ") for name in names)]]
    rows[0] += ["density", "bytes a step", "times smaller", "a step"]
    sent = [run.bytes_a_step for run in runs]
    most = max((each for each in sent if each), default=0.0)
    for run, nbytes in zip(runs, sent):
        ends = [run.metric(name, "step")[1][-1:] for name in names]
        densities = run.total("density_achieved", "step")[1]
        rows.append(
            [
                run.name,
                run.about.get("config", {}).get("selector", {}).get("id", "-"),
                str(run.about.get("world_size", "-")),
                f"{run.steps:,}",
                *(f"{end[0]:.4g}" if end else "-" for end in ends),
                f"{densities[-1]:.3g}" if densities else "-",
                in_bytes(nbytes) if nbytes else "-",
                f"{most / nbytes:.3g}" if nbytes else "-",
                "-" if run.step_s is None else in_time(run.step_s),
            ]
        )
    return rows
