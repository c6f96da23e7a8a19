"""Engines: the implementations of ``kernels.contract`` that the option ``engine`` can name."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import os
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import cast

from hvd_sparse.checks import check_whole
from hvd_sparse.errors import InvalidOption
from hvd_sparse.kernels import reference
from hvd_sparse.kernels.contract import Kernels
from hvd_sparse.registry import ENGINES

logger = logging.getLogger("hvd_sparse")

FAST = "numba"
"""The default engine on the CPU, if the package numba is installed."""

OLDEST = 0, 62
"""The oldest version of numba whose LLVM knows the instructions that the kernels use. With an older
version, LLVM would abort the process."""


def _need(engine: str, **extras: str) -> None:
    """Raise InvalidOption unless all packages are installed. ``extras`` maps each package to the
    pip extra that installs it."""
    for package, extra in extras.items():
        if importlib.util.find_spec(package) is None:
            raise InvalidOption(
                f"engine {engine!r} needs the package {package}: pip install 'hvd-sparse[{extra}]'"
            )


@ENGINES.register("numpy")
@dataclass(frozen=True)
class NumpyEngine:
    """The reference kernels, in plain numpy on the CPU. They read every vector several times."""

    @property
    def kernels(self) -> Kernels:
        return reference


@ENGINES.register("numba")
@dataclass(frozen=True)
class NumbaEngine:
    """Compiled kernels on the CPU, the default there if numba is installed. They read a gradient
    only once, to add it to the residual and to select entries. Numba compiles the kernels when the
    first compressor is created on a machine, and caches the compiled code on disk.

    Parameters
    ----------
    threads : number of threads that work on one tensor; short tensors use fewer
    """

    threads: int = 1

    def __post_init__(self) -> None:
        check_whole(self.threads, "threads of NumbaEngine", 1)
        if reason := why_not_fast():
            raise InvalidOption(f"engine 'numba' cannot be used, because {reason}")

    @property
    def kernels(self) -> Kernels:
        return _compiled(self.threads)


@ENGINES.register("torch")
@dataclass(frozen=True)
class TorchEngine:
    """Kernels of ordinary PyTorch operations, on the device of the gradients. They read every
    vector several times, and the host waits for the device once per bucket. The selected entries
    are encoded on the host, by the host's default engine."""

    def __post_init__(self) -> None:
        _need("torch", torch="torch")

    @property
    def kernels(self) -> Kernels:
        from hvd_sparse.kernels.torch import TorchKernels

        return cast(Kernels, TorchKernels(_of_host()))


@ENGINES.register("triton")
@dataclass(frozen=True)
class TritonEngine:
    """Kernels compiled by Triton, the default for gradients that are processed on a GPU if triton
    is installed. They read and write every vector once per step. Gradients that are on the host, or
    are copied there, use the host's default engine. The kernels were run on an H100 and by Triton's
    interpreter, and compiled for GPUs from sm_70 to sm_100."""

    def __post_init__(self) -> None:
        _need("triton", torch="torch", triton="gpu")

    @property
    def kernels(self) -> Kernels:
        from hvd_sparse.kernels.triton import TritonKernels, has_gpu

        if not has_gpu():
            raise InvalidOption(
                "engine 'triton' needs a GPU, but torch finds none here: leave engine out, or give "
                "engine='torch'"
            )
        return cast(Kernels, TritonKernels(_of_host()))


def works_on_devices(engine: object) -> bool:
    """Return whether an engine has kernels for devices. None, the default engine, has them."""
    return engine is None or isinstance(ENGINES.resolve(engine), (TorchEngine, TritonEngine))


def why_not_fast() -> str:
    """Return why the engine ``numba`` cannot be used, and the remedy; empty if it can be used."""
    remedy = "pip install 'hvd-sparse[fast]'"
    if importlib.util.find_spec("numba") is None:
        return f"numba is not installed: {remedy}"
    try:
        version = importlib.metadata.version("numba")
    except importlib.metadata.PackageNotFoundError:  # for example in a frozen program
        version = ".".join(map(str, OLDEST))
    if tuple(map(int, version.split(".")[:2])) < OLDEST:
        return f"numba {version} is older than {'.'.join(map(str, OLDEST))}: {remedy}"
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        return "the environment variable NUMBA_DISABLE_JIT switches numba's compiler off: unset it"
    return ""


@cache
def _compiled(threads: int) -> Kernels:
    # Imported here, because only this engine needs the package.
    from hvd_sparse.kernels.numba import CompiledKernels

    return CompiledKernels(threads)


def _has_triton() -> bool:
    if importlib.util.find_spec("triton") is None:
        return False
    from hvd_sparse.kernels.triton import has_gpu

    return has_gpu()


def _of_host() -> Kernels:
    return reference if why_not_fast() else _compiled(1)


def resolve_engine_by_place(engine: object) -> Kernels:
    """Return kernels that call one engine for vectors on a device, and another for numpy arrays.
    Engine "torch" processes both. With "triton", the host's default engine processes numpy arrays.
    None selects the fastest installed engine for vectors on a device, and that for numpy arrays."""
    from hvd_sparse.kernels.torch import KernelsByPlace

    is_triton = isinstance(None if engine is None else ENGINES.resolve(engine), TritonEngine)
    takes_triton = is_triton or (engine is None and _has_triton())
    device = TritonEngine().kernels if takes_triton else TorchEngine().kernels
    by_place = KernelsByPlace(resolve_engine(None if is_triton else engine), device)
    return cast(Kernels, by_place)  # it has all kernels as attributes


def resolve_engine(engine: object) -> Kernels:
    """Return the kernels of an engine, for gradients on the host. ``engine`` is an id, a mapping
    with an "id" and options, or an engine; None for numba if it is installed, else numpy. Raises
    UnknownName for an unknown id, and InvalidOption if a package is missing, an option is unknown
    or the engine works on GPUs only."""
    if engine is None and (reason := why_not_fast()):
        _say_slow(reason)
        engine = "numpy"
    chosen = ENGINES.resolve(FAST if engine is None else engine)
    if isinstance(chosen, TritonEngine):
        raise InvalidOption(
            "engine 'triton' works on vectors on a GPU, but no gradient of this compressor stays "
            "there: leave engine out, or put the model on the GPU"
        )
    return cast(Kernels, chosen.kernels)


@lru_cache(maxsize=1)  # once per process
def _say_slow(reason: str) -> None:
    logger.warning(
        "gradients are selected by plain numpy, several times slower than compiled code, because "
        "%s, or give engine='numpy' to silence this",
        reason,
    )
