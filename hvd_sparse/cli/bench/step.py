"""The bench ``step``: the work of a real step under Horovod, beside one pass over memory."""

from __future__ import annotations

import argparse

from hvd_sparse.cli._commands import Commands
from hvd_sparse.cli.bench import _checkout
from hvd_sparse.density_text import density_argument

MODELS = ("overhead", "transformer", "resnet50", "lstm", "vgg16")
METHODS = ("dense", "fp16", "ldte_bs", "topk", "dgc", "gaussian_k")
RANKS = (1, 2, 4)
QUICK = {"models": ["overhead"], "methods": ["dense", "ldte_bs"], "ranks": [2], "seconds": 0.1}
"""Defaults of the options with ``--quick``."""


def add_parser(benches: Commands) -> None:
    """Add the bench to the parser."""
    parser = benches.add_parser(
        "step", help="a step's work on real ranks, by method: times residual.add_, and by part"
    )
    _checkout.add_options(parser)
    parser.add_argument(
        "--models",
        nargs="+",
        choices=MODELS,
        help="whose sizes the gradients have; overhead: many small tensors (all)",
    )
    parser.add_argument(
        "--methods",
        nargs="+",
        help=f"with options as in ldte_bs,codec=block16 ({' '.join(METHODS)})",
    )
    parser.add_argument("--ranks", nargs="+", type=int, help="how many, over Gloo (1 2 4)")
    parser.add_argument(
        "--density",
        type=density_argument,
        default=0.001,
        help="a number, NAME=DENSITY,... or hiding (%(default)s)",
    )
    parser.add_argument(
        "--seconds", type=float, help="that each is measured at least; more narrow the spread (1.5)"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the bench, with defaults for the options that are not given; return its exit code."""
    defaults = {
        "models": list(MODELS),
        "methods": list(METHODS),
        "ranks": list(RANKS),
        "seconds": 1.5,
    }
    for name, value in (QUICK if options.quick else defaults).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return int(_checkout.load("stepping").run(options))
