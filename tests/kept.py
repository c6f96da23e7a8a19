"""Code that numba has compiled for other processors, kept from one run of the tests to the next."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

KERNELS = Path(__file__).resolve().parent.parent / "hvd_sparse" / "kernels"


def key() -> str:
    """Return what the code depends on: all kernels' sources, and what compiles them.

    Numba itself asks for the time of the one file that a function stands in, and for the
    processor; not for the files of what it calls.
    """
    told = hashlib.sha256(f"{sys.version} {version('numba')} {version('llvmlite')}".encode())
    for path in sorted(KERNELS.rglob("*.py")):
        told.update(f"{path.relative_to(KERNELS)}\n".encode() + path.read_bytes())
    return told.hexdigest()[:16]


@contextmanager
def compiled_before(name: str, folder: Path) -> Iterator[None]:
    """Have in a folder what a test that passed with it has left there; an error in the block keeps
    nothing."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    kept = caches / "hvd-sparse" / "numba" / f"{name}-{key()}"
    kept.parent.mkdir(parents=True, exist_ok=True)
    with open(kept.parent / "lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if kept.is_dir():
            shutil.copytree(kept, folder)
    yield
    with open(kept.parent / "lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for older in kept.parent.glob(f"{name}-*"):  # of other kernels, or cut off in the middle
            shutil.rmtree(older, ignore_errors=True)
        partial = kept.with_suffix(".partial")
        shutil.copytree(folder, partial)
        partial.rename(kept)
