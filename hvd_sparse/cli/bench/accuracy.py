"""The bench ``accuracy``: accuracy of training by method, density and optimizer, beside dense."""

from __future__ import annotations

import argparse

from hvd_sparse.cli._commands import Commands
from hvd_sparse.cli.bench import _checkout
from hvd_sparse.density_text import known_density
from hvd_sparse.errors import SparseError
from hvd_sparse.methods.spelling import read_method

TASKS = ("digits", "fashion_mnist", "lstm", "gpt")
OPTIMIZERS = ("sgd", "momentum", "adamw")


def add_parser(benches: Commands) -> None:
    """Add the bench to the parser."""
    parser = benches.add_parser(
        "accuracy",
        help="what training reaches beside dense, by method, density and optimizer",
        description="Without a method: every line of the page, the most wanted first, as far as "
        "its runs are not in DIR/accuracy.json yet. With one: that line and dense.",
    )
    _checkout.add_options(parser)
    parser.add_argument("--task", choices=TASKS, help="what is learnt (all; of one line: digits)")
    parser.add_argument("--page", action="store_true", help="train nothing, write the page anew")
    parser.add_argument("--minutes", type=float, help="begin no further run after these")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time (%(default)s)")
    _add_line(parser)
    parser.set_defaults(run=run)


def _add_line(parser: argparse.ArgumentParser) -> None:
    """Add the options of one line."""
    parser.add_argument(
        "--method",
        type=_method,
        metavar="METHOD[,OPTION=VALUE...]",
        help="one line only: dense, or a method of `hvd-sparse list`, as in ldte_bs,variant=paper",
    )
    parser.add_argument(
        "--optimizer", choices=OPTIMIZERS, default="momentum", help="of that line (%(default)s)"
    )
    parser.add_argument(
        "--density",
        type=known_density,
        default=0.001,
        help="of that line, a number or NAME=DENSITY,... (%(default)s)",
    )
    parser.add_argument(
        "--rate", type=float, help="learning rate of that line; without it, the best of a search"
    )
    parser.add_argument(
        "--kept", action="store_true", help="the optimizer keeps its work: plain error feedback"
    )
    parser.add_argument(
        "--warmup",
        type=float,
        default=0.0,
        metavar="PART",
        help="of the steps, at falling densities",
    )
    parser.add_argument("--workers", type=int, help="that share a step's examples (4)")
    parser.add_argument("--real", action="store_true", help="as real ranks of this machine")
    parser.add_argument("--steps", type=int, help="of training; without it, the task's own")
    parser.add_argument("--seeds", type=int, help="runs of the line; without it, the page's")


def _method(text: str) -> str:
    """Return a method as it is spelled, if it can be read."""
    if text != "dense":
        try:
            read_method(text)
        except SparseError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
    return text


def run(options: argparse.Namespace) -> int:
    """Run the bench; return its exit code."""
    return int(_checkout.load("accuracy").run(options))
