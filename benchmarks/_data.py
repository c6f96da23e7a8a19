"""Data sets of Debian's packages: Fashion-MNIST, and the King James Bible."""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import numpy as np

FASHION = Path("/usr/share/datasets/fashion-mnist")


@cache
def fashion_mnist() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return "train" and "t10k": images, float32 [n, 1, 28, 28] of mean 0 and variance 1, and
    labels, int64 [n].

    Raises
    ------
    SystemExit
        If the package is not installed; the message says which.
    """
    if not FASHION.is_dir():
        raise SystemExit(f"{FASHION} is not there: apt-get install dataset-fashion-mnist")
    images = {part: _idx(f"{part}-images-idx3-ubyte.gz") for part in ("train", "t10k")}
    mean, std = images["train"].mean(), images["train"].std()
    return {
        part: (
            ((pixels[:, None] - mean) / std).astype(np.float32),
            _idx(f"{part}-labels-idx1-ubyte.gz").astype(np.int64),
        )
        for part, pixels in images.items()
    }


def _idx(name: str) -> np.ndarray:
    """Return an array of the IDX format: two zeros, type and number of dimensions, sizes, bytes."""
    with gzip.open(FASHION / name) as file:
        content = file.read()
    dimensions = content[3]
    shape = np.frombuffer(content, ">u4", dimensions, 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


@cache
def scripture() -> str:
    """Return the King James Bible, 4.2 million characters without the numbers of its verses.

    Raises
    ------
    SystemExit
        If the package is not installed; the message says which.
    """
    program = shutil.which("bible", path="/usr/bin:/usr/games:/usr/local/bin")
    if program is None:
        raise SystemExit("the program bible is not there: apt-get install bible-kjv")
    done = subprocess.run(
        [program, "-f", "Gen1:1-Rev22:21"], capture_output=True, text=True, check=True, timeout=60
    )
    return re.sub(r"^\S+ ", "", done.stdout, flags=re.MULTILINE)
