"""How much a tensor's messages may come to, and what is done where a selection is more."""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np

from hvd_sparse.core.kernels.contract import Kernels
from hvd_sparse.core.wire.frame import HEADER_BYTES
from hvd_sparse.core.wire.message import overhead_bytes
from hvd_sparse.selectors.contract import Found
from hvd_sparse.types import Selection


@lru_cache(maxsize=4096)  # asked for at every step of a tensor
def capacity(codec: Any, numel: int, value_bytes: int, world_size: int, gathered_bytes: int) -> int:
    """How many entries a rank may send of a tensor, so that the messages of all ranks stay within
    so many bytes.

    At least one.  For codecs whose length depends on where the entries are, within their expected
    length.
    """
    budget = gathered_bytes / world_size - overhead_bytes(1) - HEADER_BYTES
    least, most = 1, max(1, numel)
    while least < most:
        middle = (least + most + 1) // 2
        if codec.body_bytes(middle, numel, value_bytes) <= budget:
            least = middle
        else:
            most = middle - 1
    return least


def bounded(
    found: Found, most: int | None, vector: np.ndarray, kernels: Kernels | ModuleType
) -> Found:
    """What was found, cut to its largest entries where it is more than ``most``; the others stay in
    the vector."""
    chosen = found.selection
    if most is None or chosen.count <= most:
        return found
    is_zero = chosen.values == 0  # zeros lose nothing by not being sent
    if is_zero.any():
        chosen = Selection(chosen.indices[~is_zero], chosen.values[~is_zero], chosen.numel)
    if chosen.count > most:
        chosen, _ = kernels.trim(chosen, most, vector if found.is_one_pass else None)
    return dataclasses.replace(found, selection=chosen)
