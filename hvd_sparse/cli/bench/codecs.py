"""The bench ``codecs``: bytes of an entry and costs of coding, beside the entropy bound."""

from __future__ import annotations

import argparse

from hvd_sparse.cli._commands import Commands
from hvd_sparse.cli.bench import _checkout


def add_parser(benches: Commands) -> None:
    """Add the bench to the parser."""
    parser = benches.add_parser(
        "codecs", help="bytes an entry and encode and decode cost, beside the entropy bound"
    )
    _checkout.add_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the bench; return its exit code."""
    return int(_checkout.load("encoding").run(options))
