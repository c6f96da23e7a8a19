"""The most that one tensor may send in a step."""

from __future__ import annotations

from types import ModuleType

import numpy as np

from hvd_sparse.core.kernels.contract import Kernels
from hvd_sparse.selectors.contract import Found
from hvd_sparse.types import Selection


def bounded(
    found: Found, most: int | None, vector: np.ndarray, kernels: Kernels | ModuleType
) -> Found:
    """Cut what was found to its largest entries where it is more than ``most``; the others stay in
    the vector."""
    chosen = found.selection
    if most is None or chosen.count <= most:
        return found
    is_zero = chosen.values == 0  # zeros lose nothing by not being sent
    if is_zero.any():
        chosen = Selection(chosen.indices[~is_zero], chosen.values[~is_zero], chosen.numel)
    if chosen.count > most:
        chosen, _ = kernels.trim(chosen, most, vector if found.is_one_pass else None)
    return found._replace(selection=chosen)
