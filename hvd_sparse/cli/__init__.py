"""The command ``hvd-sparse``: one module a sub-command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from hvd_sparse.cli import advise, cite, doctor, parts, report, timeline
from hvd_sparse.errors import SparseError
from hvd_sparse.version import __version__

COMMANDS = (parts, cite, doctor, advise, report, timeline)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a sub-command.

    Parameters
    ----------
    arguments : of the command line; by default those of this process

    Returns
    -------
    The exit code: 1 after an error of this package, whose message is printed
    """
    parser = argparse.ArgumentParser(
        prog="hvd-sparse", description="Gradient sparsification for unmodified Horovod."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in COMMANDS:
        module.add_parser(commands)
    options = parser.parse_args(arguments)
    try:
        return int(options.run(options))
    except SparseError as error:
        print(f"hvd-sparse: {error}", file=sys.stderr)
        return 1
