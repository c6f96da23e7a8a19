"""The command ``hvd-sparse``: one module a sub-command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from hvd_sparse.cli import advise, cite, doctor, parts, report, timeline
from hvd_sparse.errors import SparseError
from hvd_sparse.version import __version__

COMMANDS = {
    "list": (parts, "list every method and part with its options and paper"),
    "cite": (cite, "print the BibTeX of methods, parts or citation keys"),
    "doctor": (
        doctor,
        "print versions, what is used, what is missing and what does not fit together",
    ),
    "advise": (advise, "say whether compression will help, and at which density"),
    "report": (report, "show runs beside each other: one HTML file, from the lines of telemetry="),
    "timeline": (timeline, "put HVD_SPARSE_TIMELINE and HOROVOD_TIMELINE files on one clock"),
}
"""The module of every sub-command, and its help text."""


def add_commands(parser: argparse.ArgumentParser) -> argparse._SubParsersAction[Any]:
    """Add the sub-commands to a parser; each sets ``run``, a function of the parsed options."""
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module, words) in COMMANDS.items():
        command = commands.add_parser(name, help=words)
        command.set_defaults(run=module.run)
        if hasattr(module, "add_arguments"):
            module.add_arguments(command)
    return commands


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a sub-command.

    Parameters
    ----------
    arguments : of the command line; by default ``sys.argv[1:]``

    Returns
    -------
    The exit code: 1 after an error of this package, whose message is printed
    """
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
