"""``hvd-sparse bench digits``: what training reaches by every exchange and codec, with and without
the residual."""

from __future__ import annotations

import argparse
from typing import Any

from hvd_sparse.cli.bench import _checkout


def add_parser(benches: Any) -> None:
    parser = benches.add_parser(
        "digits", help="accuracy on handwritten digits: exchanges, codecs, and no residual"
    )
    _checkout.add_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    return int(_checkout.load("digits").run(options))
