"""The command ``hvd-sparse`` and its sub-commands."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from hvd_sparse.cli import advise, cite, doctor, report, timeline
from hvd_sparse.errors import SparseError
from hvd_sparse.version import __version__

COMMANDS = {
    "list": (cite.set_up_list, "list every method and part with its options and paper"),
    "cite": (cite.set_up_cite, "print the BibTeX of methods, parts or citation keys"),
    "doctor": (
        doctor.set_up,
        "print versions, what is used, what is missing and what does not fit together",
    ),
    "advise": (advise.set_up, "say whether compression will help, and at which density"),
    "report": (
        report.set_up,
        "show runs beside each other: one HTML file, from the lines of telemetry=",
    ),
    "timeline": (
        timeline.set_up,
        "put HVD_SPARSE_TIMELINE and HOROVOD_TIMELINE files on one clock",
    ),
}
"""Of every sub-command: the function that adds its arguments and sets ``run``, and its help."""


def add_commands(parser: argparse.ArgumentParser) -> argparse._SubParsersAction[Any]:
    """Add the sub-commands to a parser; each sets ``run``, a function of the parsed options."""
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (set_up, words) in COMMANDS.items():
        set_up(commands.add_parser(name, help=words))
    return commands


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a sub-command; return 1 after an error of this package, whose message is printed."""
    parser = argparse.ArgumentParser(
        prog="hvd-sparse", description="Gradient sparsification for unmodified Horovod."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    add_commands(parser)
    options = parser.parse_args(arguments)
    try:
        return int(options.run(options))
    except SparseError as error:
        print(f"hvd-sparse: {error}", file=sys.stderr)
        return 1
