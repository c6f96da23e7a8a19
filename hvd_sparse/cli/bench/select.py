"""The bench ``select``: costs of selection, beside the floor and beside other packages."""

from __future__ import annotations

import argparse

from hvd_sparse.cli._commands import Commands
from hvd_sparse.cli.bench import _checkout
from hvd_sparse.registry import ENGINES


def add_parser(benches: Commands) -> None:
    """Add the bench to the parser."""
    parser = benches.add_parser(
        "select", help="choosing entries: ours, the peers, and one pass over memory"
    )
    _checkout.add_options(parser)
    parser.add_argument(
        "--engine", choices=ENGINES.ids(), help="instead of the best that is installed"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        help="of the largest vector with goals; more make the spread smaller (32)",
    )
    parser.add_argument("--training-steps", type=int, help="of each of the real trainings (300)")
    parser.add_argument(
        "--hostile",
        action="store_true",
        help="only the worst steps: equal magnitudes, plateaus, spikes, subnormals",
    )
    parser.add_argument(
        "--variants",
        action="store_true",
        help='only methods with our settings beside those with variant="paper"',
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the bench; return its exit code."""
    return int(_checkout.load("selecting").run(options))
