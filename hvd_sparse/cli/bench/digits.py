"""The bench ``digits``: accuracy by every exchange and codec, with and without the residual."""

from __future__ import annotations

import argparse

from hvd_sparse.cli._commands import Commands
from hvd_sparse.cli.bench import _checkout


def add_parser(benches: Commands) -> None:
    """Add the bench to the parser."""
    parser = benches.add_parser(
        "digits", help="accuracy on handwritten digits: exchanges, codecs, and no residual"
    )
    _checkout.add_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the bench; return its exit code."""
    return int(_checkout.load("digits").run(options))
