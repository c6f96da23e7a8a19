"""``hvd-sparse bench planning``: plans of every strategy for real models, and what the planner
itself takes."""

from __future__ import annotations

import argparse
from typing import Any

from hvd_sparse.cli.bench import _checkout


def add_parser(benches: Any) -> None:
    parser = benches.add_parser(
        "planning", help="modelled steps by every plan for five models, and the planner's time"
    )
    _checkout.add_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    return int(_checkout.load("planning").run(options))
