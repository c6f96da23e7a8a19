"""Redistribution of residuals in elastic runs, by allreduce.

Rank i of a world of N_i ranks has residual_i / N_i (Average) or residual_i (Sum) pending for the
optimizer.  Each of the M ranks of the new world gets

    Average:  the sum of residual_i / N_i        Sum:  the sum of residual_i, divided by M

as ``state.redistribution`` computes from the states of all ranks.  If a worker dies, only the
residual that it accumulated since it joined is lost.  ``state.commits`` chooses the states to sum.
"""

from __future__ import annotations

import numpy as np

from hvd_sparse.collectives.contract import Collective
from hvd_sparse.state.redistribution import is_replicated, weight_of
from hvd_sparse.state.state_form import NewState, State


def sum_tensors(
    mine: State | None,
    chosen: State,
    holders: int,
    collective: Collective,
    name: str,
    timeout_s: float | None,
) -> NewState:
    """Return the tensors of this rank's state in the new world.  Collective.

    Parameters
    ----------
    mine : this rank's state of the old world; None if it was not part of it
    chosen : one rank's state of the old world, with every array replaced by [dtype, length]
    holders : number of ranks that have a state of the old world
    collective : the collectives of the new world
    name : name of the allreduces
    timeout_s : time limit of each allreduce, in seconds

    Raises
    ------
    ExchangeTimeout
        If a rank does not take part in time.
    """
    return {
        key: _sum_tensor(key, mine, chosen, holders, collective, name, timeout_s)
        for key in chosen["model"]
        if key in chosen["tensors"]
    }


def _sum_tensor(
    key: str,
    mine: State | None,
    chosen: State,
    holders: int,
    collective: Collective,
    name: str,
    timeout_s: float | None,
) -> NewState:
    example, arrays = chosen["tensors"][key], {}
    is_sparse = bool(example["is_sparse"])
    for array_name, (dtype, length) in sorted(example["arrays"].items()):
        part = np.zeros(length, np.float64)
        if mine is not None:
            weight = weight_of(
                array_name,
                is_sparse=is_sparse,
                reduction=chosen["reduction"],
                old_size=holders
                if is_replicated(array_name, is_sparse=is_sparse)
                else chosen["world_size"],
                new_size=collective.world_size,
            )
            part[:] = np.asarray(mine["tensors"][key]["arrays"][array_name])
            part *= weight
        arrays[array_name] = collective.allreduce(part, name).wait(timeout_s).astype(dtype)
    return {**example, "threshold": None, "memo": None, "exchange_memo": None, "arrays": arrays}
