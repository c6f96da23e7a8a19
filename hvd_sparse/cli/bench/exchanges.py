"""The bench ``exchanges``: bytes that exchanges move, beside their formulas."""

from __future__ import annotations

import argparse

from hvd_sparse.cli._commands import Commands
from hvd_sparse.cli.bench import _checkout


def add_parser(benches: Commands) -> None:
    """Add the bench to the parser."""
    parser = benches.add_parser(
        "exchanges", help="bytes a rank sends and receives by every exchange, 2 to 64 ranks"
    )
    _checkout.add_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the bench; return its exit code."""
    return int(_checkout.load("exchanges").run(options))
