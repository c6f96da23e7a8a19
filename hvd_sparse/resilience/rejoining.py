"""What the ranks of a new world keep back of the old one's: elastic runs, where workers come and
go.

Of a rank i of a world of N_i, the optimizer is still owed residual_i / N_i (Average) or residual_i
(Sum).  All ranks of the new world, M of them, so take

    Average:  the sum of residual_i / N_i        Sum:  the sum of residual_i, divided by M

which is ``resilience.redistribution`` where all N states are there.  What a worker that died had
kept back since it joined died with it; nothing else is lost.  ``resilience.commits`` says which
states are brought together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hvd_sparse.collectives.contract import Collective
from hvd_sparse.resilience.redistribution import is_replicated, weight_of


def sum_tensors(
    mine: Mapping[str, Any] | None,
    chosen: Mapping[str, Any],
    holders: int,
    collective: Collective,
    name: str,
    timeout_s: float | None,
) -> dict[str, Any]:
    """The tensors of this rank's state in the new world.  Collective: the same sums on every rank.

    mine : this rank's state of the old world; None if it was not there
    chosen : one rank's state of the old world, with type and length in the place of every array
    holders : how many of the ranks bring one
    """
    return {
        key: _sum_tensor(key, mine, chosen, holders, collective, name, timeout_s)
        for key in chosen["model"]
        if key in chosen["tensors"]
    }


def _sum_tensor(
    key: str,
    mine: Mapping[str, Any] | None,
    chosen: Mapping[str, Any],
    holders: int,
    collective: Collective,
    name: str,
    timeout_s: float | None,
) -> dict[str, Any]:
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
