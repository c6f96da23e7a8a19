"""Random numbers that depend on nothing but their purpose.

The generator is counter-based, and keyed by seed, tensor and step: the same on every rank where no
rank is given, whatever order hooks run in, without touching anybody's global generator.
"""

from __future__ import annotations

import hashlib

import numpy as np


def generator(seed: int, key: str, step: int, rank: int | None = None) -> np.random.Generator:
    """Return the generator of one tensor's step; with a rank, of that rank's.

    seed : of the selector
    key : name of the tensor
    step : completed steps of the tensor
    rank : None for one that all ranks share
    """
    digest = hashlib.sha256(f"{seed}|{key}".encode()).digest()
    # Philox draws by its lowest counter words; step and rank stand above them, so that two steps
    # would have to draw 2**128 numbers to meet.
    counter = [0, 0, step, 0 if rank is None else rank + 1]
    return np.random.Generator(
        np.random.Philox(key=np.frombuffer(digest[:16], np.uint64), counter=counter)
    )
