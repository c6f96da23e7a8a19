"""``hvd-sparse bench exchanges``: bytes that exchanges move, beside their formulas, and which is
quickest where."""

from __future__ import annotations

import argparse
from typing import Any

from hvd_sparse.cli.bench import _checkout


def add_parser(benches: Any) -> None:
    parser = benches.add_parser(
        "exchanges", help="bytes a rank sends and receives by every exchange, 2 to 64 ranks"
    )
    _checkout.add_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    return int(_checkout.load("exchanges").run(options))
