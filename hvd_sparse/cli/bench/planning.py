"""The bench ``planning``: plans of every strategy for real models, and the planner's own time."""

from __future__ import annotations

import argparse

from hvd_sparse.cli._commands import Commands
from hvd_sparse.cli.bench import _checkout


def add_parser(benches: Commands) -> None:
    """Add the bench to the parser."""
    parser = benches.add_parser(
        "planning", help="modelled steps by every plan for five models, and the planner's time"
    )
    _checkout.add_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the bench; return its exit code."""
    return int(_checkout.load("planning").run(options))
