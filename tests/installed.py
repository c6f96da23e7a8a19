"""Packages beside the extra ``dev``, and the tests that are left out without them."""

from __future__ import annotations

import mmap
import os
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

NEEDED = {
    "numba": "the cases of the engine numba",
    "torch": "tests of PyTorch's tensors",
    "triton": "tests of the engine triton",
    "tensorflow": "tests of TensorFlow's tensors",
    "horovod": "tests on real ranks and of the frontends",
    "gloo in horovod": "tests on ranks that horovodrun starts",
    "mpi in horovod": "tests on ranks that mpirun starts",
    "torch in horovod": "tests of PyTorch on real ranks",
    "tensorflow in horovod": "tests of TensorFlow on real ranks",
    "matplotlib": "tests of pictures",
    "scipy": "comparisons with scipy",
    "wandb": "the test of that writer",
    "mlflow": "the test of that writer",
}
"""Tests that are left out if a package, or an optional part of Horovod, is missing."""
CONTROLLERS = {"gloo": b"GlooController", "mpi": b"MPIController"}
"""Launchers, and for each the class that Horovod's libraries contain if they support it."""
APART = Path(sys.prefix) / "apart" / "triton"
"""Folder in which ``scripts/setup`` installs triton.

Torch loads triton whenever it finds it. But in a process that has loaded Horovod's library for
TensorFlow, loading triton causes a segmentation fault. So only processes that test triton have this
folder in their path.
"""


@cache
def is_installed(package: str) -> bool:
    return find_spec(package) is not None


@cache
def horovod_parts() -> frozenset[str]:
    """Return which of Gloo, MPI, PyTorch and TensorFlow the installed Horovod was built with.

    Horovod's own functions also tell this, but they load the framework, which takes seconds.
    """
    found = find_spec("horovod")
    folders = (found and found.submodule_search_locations) or ()
    libraries = [path for each in folders for path in Path(each).glob("*/mpi_lib*.so")]
    parts = {path.parent.name for path in libraries}
    for library in libraries[:1]:
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as text:
            parts |= {name for name, word in CONTROLLERS.items() if text.find(word) >= 0}
    return frozenset(parts)


def has_triton() -> bool:
    return is_installed("torch") and (is_installed("triton") or APART.is_dir())


def with_triton() -> dict[str, str]:
    return python_path(APART)


def python_path(*more: Path) -> dict[str, str]:
    tests = Path(__file__).parent
    return {"PYTHONPATH": os.pathsep.join(map(str, (tests, tests.parent, *more)))}


def missing() -> list[str]:
    found = {package for package in NEEDED if is_installed(package)}
    found |= {f"{part} in horovod" for part in horovod_parts()}
    if APART.is_dir():
        found.add("triton")
    if "horovod" not in found:  # then its parts are told by that
        found |= {package for package in NEEDED if package.endswith(" in horovod")}
    return [package for package in NEEDED if package not in found]


def left_out() -> str:
    parts = (f"{NEEDED[package]} ({package} is not installed)" for package in missing())
    return ", ".join(parts)
