"""``hvd-sparse bench codecs``: bytes an entry and the cost of both ways, by density, beside the
entropy bound."""

from __future__ import annotations

import argparse
from typing import Any

from hvd_sparse.cli.bench import _checkout


def add_parser(benches: Any) -> None:
    parser = benches.add_parser(
        "codecs", help="bytes an entry and encode and decode cost, beside the entropy bound"
    )
    _checkout.add_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    return int(_checkout.load("encoding").run(options))
