"""The command ``hvd-sparse report``: shows runs beside each other, from their JSON lines."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from hvd_sparse.cli._commands import Commands
from hvd_sparse.cli.report._runs import read_runs
from hvd_sparse.errors import InvalidOption


def add_parser(commands: Commands) -> None:
    """Add the sub-command to the parser."""
    parser = commands.add_parser(
        "report", help="show runs beside each other: one HTML file, from the lines of telemetry="
    )
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="a file of JSON lines, NAME=FILE, or a folder of such files",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("report.html"),
        metavar="FILE",
        help="(%(default)s)",
    )
    parser.add_argument("--png", type=Path, metavar="FILE", help="also as one picture")
    parser.add_argument("--title", default="hvd_sparse report", help="(%(default)s)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the sub-command; return its exit code."""
    runs = read_runs(options.runs)
    try:
        charts = importlib.import_module("hvd_sparse.cli.report._charts")
        page = importlib.import_module("hvd_sparse.cli.report._page")
    except ImportError as error:
        raise InvalidOption(
            f"hvd-sparse report draws with {error.name}, which is not installed: "
            "pip install 'hvd-sparse[plot]'"
        ) from None
    sections = charts.sections_of(runs)
    try:
        options.output.write_text(page.page_of(options.title, runs, sections), encoding="utf-8")
        if options.png is not None:
            page.write_png(options.png, options.title, runs, sections)
    except OSError as error:
        raise InvalidOption(
            f"{str(error.filename)!r} cannot be written: {error.strerror}; name another file with "
            "--output or --png"
        ) from None
    print(f"{len(runs)} run{'s' * (len(runs) > 1)}; open {options.output} in a browser")
    return 0
