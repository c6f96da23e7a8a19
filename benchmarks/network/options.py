"""The command line of ``scripts/bench-network``."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.architectures import ARCHITECTURES
from benchmarks.network import ddp_page, tensorflow_page, training
from benchmarks.network.cluster import bits_per_second
from hvd_sparse.density_text import density_argument

DESCRIPTION = """\
Training steps over a real wire: dense, fp16, exact top-k, DGC and ours, side by side on shaped
hosts.

Writes OUTPUT.json, OUTPUT.md and OUTPUT.png.  Every figure is the median over rounds of a ratio or
a time taken in one round, in which all methods ran one after the other, each in a launch of its
own.
"""
RECORDED = ("resnet50", "vgg16", "lstm", "transformer")
"""Models that can be trained too."""
METHODS = ("dense", "fp16", "topk", "dgc", "auto")
DDP_METHODS = (
    "dense", "fp16", "powersgd1", "powersgd2", "powersgd4", "ldte_bs", "ldte_bs,codec=block16",
)  # fmt: skip
COMPUTE = ("none", "asleep", "busy", "real")
FRONTENDS = {"tensorflow": tensorflow_page.PAGE, "ddp": ddp_page.PAGE}
"""Those of which whole steps are measured, and what is said of them."""
NAMES = {
    "exchanges": "exchanges-on-hosts",
    "plans": "plans-on-hosts",
    "train": "time-to-accuracy",
}
"""Pages beside the usual one, by option."""


def default_methods(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the methods of a command that names none."""
    if options.train:
        return training.METHODS
    return DDP_METHODS if options.frontend == "ddp" else METHODS


def parse() -> argparse.Namespace:
    """Return the options of this command; what cannot be measured is refused."""
    parser = create_parser()
    options = parser.parse_args()
    name = next((NAMES[option] for option in NAMES if getattr(options, option)), "network")
    if options.frontend != "torch":
        name = _refuse_what_only_pytorch_has(parser, options)
    options.methods = options.methods or list(default_methods(options))
    options.output = options.output or Path("docs/results", name)
    for rate in options.rates:
        if rate != "none":
            bits_per_second(rate)
    if "real" in options.compute and not set(options.models) <= set(RECORDED):
        parser.error(f"--compute real: only {', '.join(RECORDED)} can be trained")
    if {"topk", "dgc"} & set(options.methods) and not isinstance(options.density, float):
        parser.error("--density: topk and dgc are written for one number; leave them out")
    if not 2 <= options.least_hosts <= options.hosts:
        parser.error("--hosts: at least 2, and no less than --least-hosts")
    return options


def _refuse_what_only_pytorch_has(
    parser: argparse.ArgumentParser, options: argparse.Namespace
) -> str:
    """Return the name of the frontend's page."""
    compute = FRONTENDS[options.frontend].compute
    others = [f"--{each}" for each in (*NAMES, "render") if getattr(options, each)]
    if others or not set(options.compute) <= set(compute):
        parser.error(
            f"--frontend {options.frontend}: --compute {' or '.join(compute)}, and without "
            f"{' '.join(others) or 'others'}"
        )
    if unknown := {"topk", "dgc"} & set(options.methods or ()):
        parser.error(
            f"--frontend {options.frontend}: --methods dense fp16 and ours; "
            f"{' and '.join(sorted(unknown))} is of Horovod's in PyTorch"
        )
    if options.frontend == "ddp":
        options.controller = "mpi"  # which only starts the ranks
    return f"network-{options.frontend}"


def create_parser() -> argparse.ArgumentParser:
    """Return the parser, which knows names and kinds."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench-network",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--hosts", type=int, default=4, help="one rank on each (default 4)")
    parser.add_argument(
        "--rates", nargs="+", default=["100mbit", "1gbit", "10gbit", "none"], help="none: unshaped"
    )
    parser.add_argument("--models", nargs="+", default=["resnet50"], choices=ARCHITECTURES)
    parser.add_argument("--compute", nargs="+", default=["none"], choices=COMPUTE)
    parser.add_argument(
        "--backward-ms", type=float, default=80.0, help="of asleep and busy (default 80)"
    )
    parser.add_argument(
        "--methods",
        nargs="+",
        help=f"the last is ours (default {' '.join(METHODS)}; of --train "
        f"{' '.join(training.METHODS)}; of --frontend ddp {' '.join(DDP_METHODS)})",
    )
    parser.add_argument(
        "--frontend",
        default="torch",
        choices=("torch", *FRONTENDS),
        help="tensorflow, ddp: whole steps, on a page of its own",
    )
    parser.add_argument(
        "--density",
        type=density_argument,
        default=0.001,
        help="of ours a number, NAME=DENSITY,... or hiding; of topk and dgc a number (0.001)",
    )
    parser.add_argument("--controller", default="gloo", choices=("gloo", "mpi"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--steps", type=int, default=5, help="a round, of a method that takes less than 1.5 s"
    )
    parser.add_argument("--warmup", type=int, default=5, help="steps before the first round")
    parser.add_argument(
        "--exchanges",
        action="store_true",
        help="count every exchange's bytes on 2 to 4 hosts instead",
    )
    parser.add_argument(
        "--plans",
        action="store_true",
        help="messages planned in the run instead, on --least-hosts to --hosts",
    )
    parser.add_argument(
        "--train",
        nargs="+",
        choices=training.OPTIMIZERS,
        help="whole trainings of these tasks instead: time to accuracy",
    )
    parser.add_argument(
        "--least-hosts",
        type=int,
        default=2,
        help="of --plans (default 2)",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="of --train: few rounds or steps, to see that it works",
    )
    parser.add_argument(
        "--append",
        action="store_true",
        help="keep the settings of OUTPUT.json that are not measured anew",
    )
    parser.add_argument(
        "--render", action="store_true", help="measure nothing, write the page of OUTPUT.json anew"
    )
    parser.add_argument(
        "--output", type=Path, help="without a suffix (docs/results/..., by what is measured)"
    )
    return parser
