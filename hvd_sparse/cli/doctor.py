"""The command ``hvd-sparse doctor``: prints the installed versions, the engine and checksums in
use, missing packages, and whether each frontend can be used."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import platform

from hvd_sparse.kernels.engines import FAST, why_not_fast
from hvd_sparse.version import __version__
from hvd_sparse.wire.frame import crc32

EXTRAS = {
    "horovod": (
        "horovod",
        "neither hvd_sparse.torch nor hvd_sparse.tensorflow; if pip cannot compile Horovod, as "
        "with torch 2.13, scripts/setup can, in an environment of its own",
    ),
    "torch": ("torch", "neither hvd_sparse.torch nor hvd_sparse.ddp"),
    "tensorflow": ("tensorflow", "no hvd_sparse.tensorflow"),
    "tf-keras": (
        "tensorflow",
        "no Keras 2; Keras 3 trains by hvd_sparse.keras.DistributedOptimizer",
    ),
    "numba": (
        "fast",
        "gradients are selected by plain numpy, in several passes and several times slower",
    ),
    "triton": (
        "gpu",
        "gradients on a GPU are selected by torch operations, up to three times slower; but "
        "beside Horovod for TensorFlow, triton crashes (docs/guide/gpu.md)",
    ),
    "greenlet": (
        "fast",
        "the CPU waits for the GPU once for each tensor instead of once for each bucket",
    ),
    "isal": ("fast", "zlib computes checksums, which takes about ten times as long"),
    "matplotlib": ("plot", "neither hvd-sparse report nor the benchmarks that draw pictures"),
    "rich": (
        "plot",
        "neither most benchmarks nor examples/demo.py; hvd-sparse prints plain tables in any case",
    ),
    "scikit-learn": ("plot", "no data for the examples on digits, nor for the benchmark curves"),
}
"""Maps an optional package to the extra that installs it, and to the consequence of its absence."""
PACKAGES = ("numpy", *EXTRAS, "keras")
TESTED = {"tensorflow": ("2.18", "2.21"), "torch": ("2.13",), "horovod": ("0.28",)}
"""Versions that the tests run with; all patch releases of a version count as this version."""


def run(options: argparse.Namespace) -> int:
    """Print the report. Return 0 if at least one frontend can be used, else 1."""
    print(f"hvd_sparse   {__version__}\npython       {platform.python_version()}")
    for package in PACKAGES:
        print(f"{package:<12} {_version_of(package) or '-'}")
    print(f"\nengine       {_engine()}\nchecksums    {crc32.__module__.partition('.')[0]}")
    heading = "\nuntested versions:\n"
    for package, tested in TESTED.items():
        version = _version_of(package)
        if version is not None and ".".join(version.split(".")[:2]) not in tested:
            print(f"{heading}    {package:<12} {version}; tested: {' and '.join(tested)}")
            heading = ""
    missing = {name: told for name, told in EXTRAS.items() if _version_of(name) is None}
    if missing:
        print("\nmissing packages, and the consequences:")
    for package, (extra, cost) in missing.items():
        print(f"    {package:<12} {cost}: pip install 'hvd-sparse[{extra}]'")
    usable = [_check_horovod("torch"), _check_horovod("tensorflow"), _check_ddp()]
    return 0 if any(usable) else 1


def _engine() -> str:
    if reason := why_not_fast():
        return f"numpy, because {reason}"
    try:
        importlib.import_module(FAST)
    except Exception as error:  # a broken installation may raise any error
        return (
            f"{FAST} cannot be loaded: {error}; repair or uninstall {FAST}, or give engine='numpy'"
        )
    return f"{FAST}, compiled"


def _version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        if package != "tensorflow":
            return None
    # Other distributions have TensorFlow, too, for example tensorflow-cpu and tf-nightly.
    names = importlib.metadata.packages_distributions().get(package)
    return importlib.metadata.version(names[0]) if names else None


def _loads(frontend: str, package: str) -> bool:
    """Import a frontend. Return whether it can be used; if not, print the reason."""
    if _version_of(package) is None:
        print(f"\nhvd_sparse.{frontend}: {package} is not installed")
        return False
    try:
        importlib.import_module(f"hvd_sparse.{frontend}")
    except Exception as error:  # a broken installation may raise any error
        print(f"\nhvd_sparse.{frontend}: cannot be used: {type(error).__name__}: {error}")
        return False
    return True


def _check_horovod(framework: str) -> bool:
    if not _loads(framework, framework):
        return False
    hvd = importlib.import_module(f"horovod.{framework}")
    parts = {"MPI": hvd.mpi_built(), "Gloo": hvd.gloo_built(), "NCCL": hvd.nccl_built()}
    *others, last = [name for name, built in parts.items() if built]
    print(
        f"\nhvd_sparse.{framework}: ready; Horovod was built with "
        f"{', '.join(others)}{' and ' if others else ''}{last}"
    )
    if not parts["Gloo"]:
        print(
            "    without Gloo: start programs with mpirun or horovodrun --mpi; horovodrun --gloo "
            "and elastic runs need Horovod built with Gloo"
        )
    if framework == "torch":
        _print_torch()
        return True
    optimizer = importlib.import_module("hvd_sparse.tensorflow.optimizer")
    if optimizer.is_keras_3():
        print(f"    tf.keras is Keras 3. {optimizer.WAY_OUT}")
    return True


def _check_ddp() -> bool:
    if not _loads("ddp", "torch"):
        return False
    dist = importlib.import_module("torch.distributed")
    parts = {"Gloo": dist.is_gloo_available, "MPI": dist.is_mpi_available}
    built = [name for name, ask in {**parts, "NCCL": dist.is_nccl_available}.items() if ask()]
    print(f"\nhvd_sparse.ddp: ready, without Horovod; torch was built with {', '.join(built)}")
    return True


def _print_torch() -> None:
    """Print whether PyTorch's gradients are compressed on the host or the device, and whether
    messages are sent from the host or the device."""
    torch = importlib.import_module("torch")
    arrays = importlib.import_module("hvd_sparse.frontend.torch.arrays")
    horovod = importlib.import_module("hvd_sparse.collectives.horovod_torch")
    device = arrays.accelerator()
    told = reason = "torch finds no accelerator"
    if device is not None:
        told = (
            f"on {device}: device (only selected entries are copied) or, with some parts and "
            "options, staged (copied to the host and back)"
        )
        reason = horovod.why_not_on(torch.device(device))
    wire = f"host; {reason}" if reason else f"device, by Horovod's operations on {device}"
    print(f"    gradients on the CPU: host; {told}\n    wire of messages: {wire}")
