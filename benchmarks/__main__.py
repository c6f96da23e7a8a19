"""Run a benchmark on this machine: ``python -m benchmarks BENCH``, from the root of a checkout.

A benchmark is either a module with ``run(options)``, and with ``add_options(parser)`` if it has
options of its own, or a program that reads its command line itself.
"""

from __future__ import annotations

import argparse
import importlib
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from hvd_sparse.errors import SparseError

BENCHES = {
    "select": ("selecting", "selection cost: ours, the peers', and one pass over memory"),
    "step": ("stepping", "step overhead on real ranks, by method and part, beside residual.add_"),
    "accuracy": ("accuracy", "accuracy of compressed and dense training, by method and optimizer"),
    "curves": ("curves", "a short training by every named method: the curves on their pages"),
    "codecs": ("encoding", "codecs: bytes an entry beside the entropy bound, and time to code"),
    "journey": ("journey.bench", "the calls on a tensor's way through a step, counted"),
}
"""Benchmarks by name: the module and a description."""
PROGRAMS = {
    "waiting": "whole steps of a small GPT on one machine: dense, fp16 and sparse",
    "network": "steps and whole trainings over shaped networks; scripts/bench-network calls it",
}
"""Benchmarks that read their command line themselves."""


def main(arguments: Sequence[str]) -> int:
    shown = "\n".join(
        f"  {name:18}{words}"
        for name, words in [*((n, words) for n, (_, words) in BENCHES.items()), *PROGRAMS.items()]
    )
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=f"Measure on this machine: tables, JSON and pictures.\n\n{shown}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("bench", choices=(*BENCHES, *PROGRAMS), metavar="BENCH")
    name = parser.parse_args(arguments[:1]).bench
    try:
        if name in BENCHES:
            return _run(name, arguments[1:])
        sys.argv[1:] = arguments[1:]
        runpy.run_module(f"benchmarks.{name}", run_name="__main__", alter_sys=True)
        return 0
    except ModuleNotFoundError as error:
        print(f"{name}: {error}; scripts/setup installs what benchmarks need", file=sys.stderr)
    except SparseError as error:
        print(f"{name}: {error}", file=sys.stderr)
    return 1


def _run(name: str, arguments: Sequence[str]) -> int:
    module = importlib.import_module(f"benchmarks.{BENCHES[name][0]}")
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks {name}", description=BENCHES[name][1]
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a short trial, whose figures mean nothing; without effect on journey",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("bench-output"),
        metavar="DIR",
        help="folder of JSON, pages and pictures (default: %(default)s)",
    )
    if hasattr(module, "add_options"):
        module.add_options(parser)
    return int(module.run(parser.parse_args(arguments)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
