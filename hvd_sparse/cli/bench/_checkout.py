"""The folder ``benchmarks`` beside the package, which a checkout has and a wheel has not."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from types import ModuleType

from hvd_sparse.errors import NotInstalled

ROOT = Path(__file__).resolve().parents[3]
REPOSITORY = "a checkout of hvd_sparse, installed with: pip install -e '.[plot,torch]'"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that every bench has."""
    parser.add_argument(
        "--quick",
        action="store_true",
        help="small and few, to see that it works: no figures to quote",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("bench-output"),
        metavar="DIR",
        help="for JSON and pictures (%(default)s)",
    )


def load(name: str) -> ModuleType:
    """Return the module ``benchmarks.<name>`` of this checkout.

    Raises
    ------
    NotInstalled
        If the module, or a package that it needs, is not there.
    """
    if not (ROOT / "benchmarks" / f"{name}.py").is_file():
        raise NotInstalled(
            f"benchmarks/{name}.py is not beside {ROOT / 'hvd_sparse'}: benches need {REPOSITORY}"
        )
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    try:
        return importlib.import_module(f"benchmarks.{name}")
    except ModuleNotFoundError as error:
        raise NotInstalled(
            f"the bench needs {error.name}, which is not installed: benches need {REPOSITORY}"
        ) from error
