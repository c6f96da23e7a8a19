"""``hvd-sparse bench select``: what choosing the entries costs, beside the floor and beside
others."""

from __future__ import annotations

import argparse
from typing import Any

from hvd_sparse.cli.bench import _checkout
from hvd_sparse.registry import ENGINES


def add_parser(benches: Any) -> None:
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
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    return int(_checkout.load("selecting").run(options))
