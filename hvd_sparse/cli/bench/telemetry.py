"""The bench ``telemetry``: what watching a run costs, beside the compressor's own work."""

from __future__ import annotations

import argparse

from hvd_sparse.cli._commands import Commands
from hvd_sparse.cli.bench import _checkout


def add_parser(benches: Commands) -> None:
    """Add the bench to the parser."""
    parser = benches.add_parser(
        "telemetry", help="what telemetry= costs a step, at its default interval and at others"
    )
    _checkout.add_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the bench; return its exit code."""
    return int(_checkout.load("watching").run(options))
