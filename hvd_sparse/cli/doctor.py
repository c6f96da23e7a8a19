"""``hvd-sparse doctor``: what is installed here, and what of it does not fit together."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import platform
from typing import Any

from hvd_sparse.version import __version__

PACKAGES = ("numpy", "horovod", "torch", "tensorflow", "tf-keras", "keras", "mpi4py")


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("doctor", help="print versions and what does not fit together")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """0 if at least one frontend can be used, else 1."""
    print(f"hvd_sparse   {__version__}\npython       {platform.python_version()}")
    for package in PACKAGES:
        print(f"{package:<12} {_version_of(package) or '-'}")
    usable = [_check_frontend("torch"), _check_frontend("tensorflow")]
    return 0 if any(usable) else 1


def _version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _check_frontend(framework: str) -> bool:
    """Load a frontend, which loads Horovod beside the framework, and say what came of it."""
    if _version_of(framework) is None:
        print(f"\nhvd_sparse.{framework}: {framework} is not installed")
        return False
    try:
        importlib.import_module(f"hvd_sparse.{framework}")
    except ImportError as error:
        print(f"\nhvd_sparse.{framework}: cannot be used: {error}")
        return False
    hvd = importlib.import_module(f"horovod.{framework}")
    parts = {"MPI": hvd.mpi_built(), "Gloo": hvd.gloo_built(), "NCCL": hvd.nccl_built()}
    *others, last = [name for name, built in parts.items() if built]
    print(
        f"\nhvd_sparse.{framework}: ready; Horovod was built with "
        f"{', '.join(others)}{' and ' if others else ''}{last}"
    )
    if framework == "tensorflow":
        _warn_of_keras_3()
    return True


def _warn_of_keras_3() -> None:
    variables = importlib.import_module("hvd_sparse.tensorflow.variables")
    if variables.is_keras_3():
        print(f"    tf.keras is Keras 3. {variables.WAY_OUT}")
