"""The command line of ``scripts/bench-network``."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.architectures import ARCHITECTURES
from benchmarks.network.cluster import rate_argument
from benchmarks.network.training_store import PEER_DENSITY, TASK_NAMES
from examples.spelling import density_argument

DESCRIPTION = """\
Compare dense, fp16, peers' and our methods on hosts whose links have a limited bandwidth.

Measures whole steps, on gradients of a model's sizes.  With --train, measures how long whole
trainings take until they are as good as dense training.  Writes OUTPUT.json, OUTPUT.md and
OUTPUT.png.  Trainings whose results are in OUTPUT.json are not repeated.
"""
COMPUTE = {"torch": ("none", "asleep", "busy"), "tensorflow": ("none",), "ddp": ("none", "asleep")}
"""Values of ``--compute``, by frontend: what the worker does in place of a backward pass."""
METHODS = {
    "torch": ("dense", "fp16", "topk", "dgc", "auto"),
    "tensorflow": ("dense", "fp16", "auto"),
    "ddp": ("dense", "fp16", "powersgd1", "powersgd2", "powersgd4", "ldte_bs"),
    "train": ("dense", "fp16", "powersgd4", "topk", "dgc", "ldte_bs"),
}
"""Default methods by frontend, and of trainings; the last one is ours."""
RATES = ("100mbit", "1gbit", "10gbit", "none")
NAMES = {"torch": "network", "train": "trainings"}
"""Names of pages; those of the other frontends are network-FRONTEND."""
OF_STEPS = ("models", "compute", "backward_ms", "rounds", "warmup")
OF_TRAININGS = ("seeds", "quick", "timed_steps")
"""Options that have an effect only without, or only with ``--train``."""
STEP_DENSITY, STEPS = 0.001, 5


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the options of a command line; exit with a message if they cannot be measured."""
    parser = create_parser()
    options = parser.parse_args(arguments)
    what = "train" if options.train else options.frontend
    options.methods = options.methods or list(METHODS[what])
    options.hosts = options.hosts or (2 if options.train else 4)
    if options.density is None:
        options.density = PEER_DENSITY if options.train else STEP_DENSITY
    if not options.train:
        options.steps = options.steps or STEPS
    name = NAMES.get(what, f"network-{options.frontend}")
    folder = "bench-output" if options.quick else "docs/results"
    options.output = options.output or Path(folder, name)
    _refuse(parser, options)
    return options


def _refuse(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    frontend, compute = options.frontend, COMPUTE[options.frontend]
    if not set(options.compute) <= set(compute):
        parser.error(f"--frontend {frontend}: --compute {' or '.join(compute)}")
    if options.train and frontend != "torch":
        parser.error(f"--train: trains in PyTorch, so leave --frontend {frontend} out")
    peers = sorted({"topk", "dgc"} & set(options.methods))
    if peers and frontend != "torch":
        parser.error(f"--methods {' '.join(peers)}: as peers have it in Horovod's PyTorch alone")
    if (peers or options.train) and not isinstance(options.density, float):
        parser.error("--density: topk, dgc and trainings take one number")
    if options.hosts < 2:
        parser.error("--hosts: at least 2")
    for name in OF_STEPS if options.train else OF_TRAININGS:
        if getattr(options, name) != parser.get_default(name):
            way = "with" if options.train else "without"
            parser.error(f"--{name.replace('_', '-')}: has no effect {way} --train")
    if options.train and "dense" not in options.methods:
        parser.error("--methods: with dense, to which trainings are compared")


def create_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/bench-network",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--hosts", type=int, help="hosts, with one rank on each (default: 4; with --train 2)")
    rates = f"bandwidths of the links; none: without a limit (default: {' '.join(RATES)})"
    add("--rates", nargs="+", type=rate_argument, default=list(RATES), help=rates)
    methods = f"methods; steps are compared with the last (default: {' '.join(METHODS['torch'])}; "
    methods += "others with --train and other frontends)"
    add("--methods", nargs="+", help=methods)
    add("--frontend", default="torch", choices=COMPUTE, help="each has a page (default: torch)")
    models = "models whose sizes the gradients of steps have (default: resnet50)"
    add("--models", nargs="+", default=["resnet50"], choices=ARCHITECTURES, help=models)
    compute = "what steps do in place of the backward pass (default: none)"
    add("--compute", nargs="+", default=["none"], choices=COMPUTE["torch"], help=compute)
    backward = "length of the backward pass with asleep and busy (default: 80)"
    add("--backward-ms", type=float, default=80.0, help=backward)
    add(
        "--density",
        type=density_argument,
        help=f"a number, a mapping or hiding (default: {STEP_DENSITY}); with --train, only of topk "
        f"and dgc (default: {PEER_DENSITY})",
    )
    add("--controller", default="gloo", choices=("gloo", "mpi"), help="of Horovod (default: gloo)")
    add("--rounds", type=int, default=5, help="launches of every method for steps (default: 5)")
    add("--steps", type=int, help=f"of a launch (default: {STEPS}), or of a training with --train")
    add("--warmup", type=int, default=5, help="least untimed steps of a launch (default: 5)")
    append = "keep the page's settings that are not measured anew; trainings always do"
    add("--append", action="store_true", help=append)
    add("--train", nargs="+", choices=TASK_NAMES, help="whole trainings of these tasks")
    add("--seeds", type=int, default=1, help="seeds of --train at every rate (default: 1)")
    timed = "with --train: make only so many steps of a training that is stored with another "
    timed += "bandwidth, and compute its other times and scores from these"
    add("--timed-steps", type=int, help=timed)
    add("--quick", action="store_true", help="with --train: few steps, no search of rates")
    output = "path without a suffix (default: one in docs/results; with --quick in bench-output)"
    add("--output", type=Path, help=output)
    return parser
