"""The command ``hvd-sparse bench``: measures this machine, with one module for each bench.

A bench's module has ``add_parser(benches)``, which adds its options, and ``run(options)``.  The
measurements are in the folder ``benchmarks`` of a checkout, with the baselines and their packages,
and are loaded by ``run`` only.
"""

from __future__ import annotations

import importlib
import pkgutil

from hvd_sparse.cli._commands import Commands


def add_parser(commands: Commands) -> None:
    """Add the sub-command to the parser."""
    parser = commands.add_parser("bench", help="measure on this machine: tables, JSON and pictures")
    benches = parser.add_subparsers(dest="bench", required=True, metavar="BENCH")
    for module in pkgutil.iter_modules(__path__):
        if not module.name.startswith("_"):
            importlib.import_module(f"{__name__}.{module.name}").add_parser(benches)
