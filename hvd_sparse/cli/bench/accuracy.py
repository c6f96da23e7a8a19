"""The bench ``accuracy``: accuracy of training by method, density and optimizer, beside dense."""

from __future__ import annotations

import argparse

from hvd_sparse.cli._commands import Commands
from hvd_sparse.cli.bench import _checkout
from hvd_sparse.errors import SparseError
from hvd_sparse.methods.spelling import read_method

TASKS = ("digits", "fashion_mnist")
OPTIMIZERS = ("sgd", "momentum", "adamw")


def add_parser(benches: Commands) -> None:
    """Add the bench to the parser."""
    parser = benches.add_parser(
        "accuracy",
        help="what training reaches beside dense, by method, density and optimizer",
        description="Without a method: every line of the page, as far as its runs are not in DIR "
        "yet. With one: that line.",
    )
    _checkout.add_options(parser)
    parser.add_argument(
        "--task", choices=TASKS, default="digits", help="what is learnt (%(default)s)"
    )
    parser.add_argument(
        "--method",
        type=_method,
        metavar="METHOD[,OPTION=VALUE...]",
        help="one line only: dense, or a method of `hvd-sparse list`, as in ldte_bs,variant=paper",
    )
    parser.add_argument(
        "--optimizer", choices=OPTIMIZERS, default="momentum", help="of that line (%(default)s)"
    )
    parser.add_argument("--density", type=float, default=0.001, help="of that line (%(default)s)")
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
    parser.add_argument(
        "--workers",
        type=int,
        default=4,
        help="simulated in one process, or real ranks (%(default)s)",
    )
    parser.add_argument(
        "--real", action="store_true", help="by Horovod, on real ranks of this machine"
    )
    parser.add_argument("--epochs", type=int, help="of training; without it, the task's own")
    parser.add_argument("--seeds", type=int, help="runs of each line (5; 1 with --quick)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time (%(default)s)")
    parser.set_defaults(run=run)


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
