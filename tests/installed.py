"""Packages that tests need beside those of the extra ``dev``, and what is left out without them."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

NEEDED = {
    "numba": "the cases of the engine numba",
    "torch": "tests of PyTorch's tensors",
    "triton": "tests of the engine triton",
    "tensorflow": "tests of TensorFlow's tensors",
    "horovod": "tests on real ranks and of the frontends",
    "matplotlib": "tests of pictures",
    "scipy": "comparisons with scipy",
}
"""What each package's absence leaves out."""


@cache
def is_installed(package: str) -> bool:
    """Return whether a package can be imported here; it is not loaded to find out."""
    return find_spec(package) is not None


def missing() -> list[str]:
    """Return the packages that are not installed."""
    return [package for package in NEEDED if not is_installed(package)]


def left_out() -> str:
    """Return what does not run here, and why, as one line; empty where everything runs."""
    parts = (f"{NEEDED[package]} ({package} is not installed)" for package in missing())
    return ", ".join(parts)
