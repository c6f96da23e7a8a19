"""What the ranks of a new world keep back of the old one's: elastic runs, where workers come and go.

Of a rank i of a world of N_i, the optimizer is still owed residual_i / N_i (Average) or residual_i (Sum).  All ranks
of the new world, M of them, so take

    Average:  the sum of residual_i / N_i        Sum:  the sum of residual_i, divided by M

which is ``core.redistribution`` where all N states are there.  What a worker that died had kept back since it joined
died with it; nothing else is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..core.collective import Collective
from ..core.redistribution import is_replicated, weight_of
from ..errors import RankMismatch
from .checkpoint import with_arrays
from .gathering import Gatherer


def share_state(state: Mapping[str, Any], collective: Collective, name: str, timeout_s: float | None) -> dict[str, Any]:
    """This rank's state in the new world.  Collective.

    state : what this rank kept in its last world; without tensors if it is new
    """
    rank, world_size = collective.rank, collective.world_size
    mine = with_arrays(state, np.asarray)
    gatherer = Gatherer(collective, name, timeout_s)
    told = gatherer.tell_all(with_arrays(mine, lambda array: [array.dtype.name, array.size]))
    here = {**mine, "rank": rank, "world_size": world_size}
    old = [other for other in told if other["tensors"]]
    if not old:
        return here
    if len(old) == world_size and all(other["world_size"] == world_size for other in old):
        return here  # nobody came or went: residuals belong to their rank
    _check_steps(old)
    here["reduction"] = old[0]["reduction"]
    here["tensors"] = {
        key: _sum_tensor(key, mine, old, collective, name, timeout_s)
        for key in mine["model"]
        if any(key in other["tensors"] for other in old)
    }
    return here


def _check_steps(old: list[dict[str, Any]]) -> None:
    for key in old[0]["model"]:
        steps = sorted({other["tensors"][key]["steps"] for other in old if key in other["tensors"]})
        if len(steps) > 1:
            raise RankMismatch(
                f"tensor {key!r} has made {steps} steps on the workers that go on: give the compressor to the elastic "
                "state, so that all of them go on from one commit"
            )


def _sum_tensor(
    key: str,
    mine: Mapping[str, Any],
    old: list[dict[str, Any]],
    collective: Collective,
    name: str,
    timeout_s: float | None,
) -> dict[str, Any]:
    example = next(other["tensors"][key] for other in old if key in other["tensors"])
    holders = sum(key in other["tensors"] for other in old)
    arrays = {}
    for array_name, (dtype, length) in sorted(example["arrays"].items()):
        part = np.zeros(length, np.float64)
        if key in mine["tensors"]:
            is_sparse = bool(example["is_sparse"])
            weight = weight_of(
                array_name,
                is_sparse=is_sparse,
                reduction=old[0]["reduction"],
                old_size=holders if is_replicated(array_name, is_sparse=is_sparse) else mine["world_size"],
                new_size=collective.world_size,
            )
            part[:] = mine["tensors"][key]["arrays"][array_name]
            part *= weight
        arrays[array_name] = collective.allreduce(part, name).wait(timeout_s).astype(dtype)
    return {**example, "threshold": None, "memo": None, "exchange_memo": None, "arrays": arrays}
