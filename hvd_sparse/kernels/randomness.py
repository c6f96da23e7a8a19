"""Random numbers that depend only on seed, tensor, step and, if given, rank.

The generator is counter-based, so the order of hooks does not matter, and global generators are not
used. Without a rank all ranks draw the same numbers.
"""

from __future__ import annotations

import hashlib

import numpy as np


def generator(seed: int, key: str, step: int, rank: int | None = None) -> np.random.Generator:
    """Return the generator for one step of a tensor.

    seed : seed of the selector
    key : name of the tensor
    step : number of completed steps of the tensor
    rank : the rank, or None for a generator that all ranks share
    """
    digest = hashlib.sha256(f"{seed}|{key}".encode()).digest()
    # Philox counts draws in the lowest words, so steps and ranks would only overlap after 2**128
    # draws.
    counter = [0, 0, step, 0 if rank is None else rank + 1]
    return np.random.Generator(
        np.random.Philox(key=np.frombuffer(digest[:16], np.uint64), counter=counter)
    )
