"""``hvd-sparse bench``: measurements of this machine, one module a bench.

A bench's module has ``add_parser(benches)``, which says what can be asked for, and
``run(options)``.  What measures is in the folder ``benchmarks`` of a checkout, with the baselines
and their packages, and is loaded by ``run`` only.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("bench", help="measure on this machine: tables, JSON and pictures")
    benches = parser.add_subparsers(dest="bench", required=True, metavar="BENCH")
    for module in pkgutil.iter_modules(__path__):
        if not module.name.startswith("_"):
            importlib.import_module(f"{__name__}.{module.name}").add_parser(benches)
