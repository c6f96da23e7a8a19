"""Redistribution of residuals to another number of ranks, without loss.

``redistribute`` takes the states of all ranks; in an elastic run ``sum_tensors`` does the same by
allreduce.

The residuals pending for the optimizer are ``factor * sum over ranks (residual)``, where Horovod's
factor is 1/N for Average and independent of N for Sum.  From N states, each of M new ranks gets

    Average:  the mean of the N            (1/M) * M * (sum / N)  =  (1/N) * sum
    Sum:      the sum, divided by M        M * (sum / M)          =  sum

Sums are computed in float64 and rounded once.  Velocities of momentum correction are pending
gradients too, and are treated like residuals.  Some arrays are the same on every rank (the state of
tensors that are never compressed, weight decay), or each rank's estimate of the same quantity
(Adam's moments): their mean is taken for any reduction.  Thresholds are reset, because those of the
new residuals differ, and so are measured densities.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hvd_sparse.collectives.contract import Collective
from hvd_sparse.configuration import LOCAL
from hvd_sparse.errors import RankMismatch
from hvd_sparse.state.state_check import check_form
from hvd_sparse.untyped import Report, State

REPLICATED = frozenset({"decay", "mean", "square", "largest"})
"""Names of memories' arrays that are the same on every rank, or each rank's own estimate of the
same."""
SHARED_FIELDS = ("version", "config", "model", "world_size", "reduction")
"""Fields of a state that are equal on all ranks of a world."""


def redistribute(states: Sequence[State], world_size: int) -> list[Report]:
    """Redistribute the states of one world to a world of another size.

    Parameters
    ----------
    states : ``Compressor.state_dict()`` of every rank, in any order
    world_size : number of ranks of the new world

    Returns
    -------
    A state for each rank of the new world, in rank order; unchanged if the size is the same

    Raises
    ------
    RankMismatch : the states are not those of all ranks of one world at one step
    CorruptCheckpoint : one of them is not a valid state

    Examples
    --------
    >>> states = read("step-1000.ckpt")  # doctest: +SKIP
    >>> redistribute(states, world_size=2)  # doctest: +SKIP
    """
    _check_one_world(states)
    ordered = sorted(states, key=lambda state: int(state["rank"]))
    if len(ordered) == world_size:
        return [dict(state) for state in ordered]
    first = ordered[0]
    keys = [key for key in first["model"] if any(key in state["tensors"] for state in ordered)]
    tensors = {key: _merge_tensor(key, first, ordered, world_size) for key in keys}
    return [
        {**first, "rank": rank, "world_size": world_size, "tensors": tensors}
        for rank in range(world_size)
    ]


def _check_one_world(states: Sequence[State]) -> None:
    """Raise RankMismatch unless the states are those of all ranks of one world at one step."""
    if not states:
        raise RankMismatch("there are no states to redistribute: give those of all ranks")
    for state in states:
        check_form(state)
    first = states[0]
    differing = [
        field
        for field in SHARED_FIELDS
        if any(_shared(state, field) != _shared(first, field) for state in states)
    ]
    if differing:
        raise RankMismatch(
            f"the states differ in {', '.join(differing)}: give those of all ranks of one run"
        )
    ranks = sorted(int(state["rank"]) for state in states)
    if ranks != list(range(int(first["world_size"]))):
        raise RankMismatch(
            f"the states are those of the ranks {ranks}, of a world of {first['world_size']}: give "
            "the state of each rank once"
        )
    for key in first["model"]:
        steps = {int(state["tensors"][key]["steps"]) for state in states if key in state["tensors"]}
        if len(steps) > 1:
            raise RankMismatch(
                f"tensor {key!r} has made {sorted(steps)} steps on the ranks: give states saved at "
                "the same step"
            )
        arrays = {_lengths(state["tensors"][key]) for state in states if key in state["tensors"]}
        if len(arrays) > 1:
            raise RankMismatch(
                f"tensor {key!r} has other arrays on some ranks: give the states of all ranks of "
                "one run"
            )


def _shared(state: State, field: str) -> object:
    """Return a field without the options that may differ between ranks."""
    if field != "config":
        return state.get(field)
    return {option: value for option, value in state[field].items() if option not in LOCAL}


def _lengths(tensor: State) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((name, len(array)) for name, array in tensor["arrays"].items()))


def _weight_of(
    name: str, tensor: State, reduction: str, holders: int, old_size: int, new_size: int
) -> float:
    """Return the factor by which a new rank multiplies an array's sum over the old ranks.

    ``holders`` is the number of ranks whose arrays are summed, at most ``old_size``.
    """
    if name in REPLICATED or not tensor["is_sparse"]:
        return 1.0 / holders
    return 1.0 / (old_size if reduction == "average" else new_size)


def _merge_tensor(key: str, first: State, states: Sequence[State], size: int) -> Report:
    given = [state["tensors"][key] for state in states if key in state["tensors"]]
    arrays = {}
    for name, example in given[0]["arrays"].items():
        count = len(states)
        weight = _weight_of(name, given[0], first["reduction"], count, count, size)
        dtype = np.asarray(example).dtype
        total = np.zeros(len(example), np.float64)
        for tensor in given:
            total += np.asarray(tensor["arrays"][name])
        arrays[name] = (total * weight).astype(dtype)
    # Measured densities depend on the number of ranks.
    forgotten = dict.fromkeys(("threshold", "memo", "exchange_memo", "density"))
    return {**given[0], **forgotten, "arrays": arrays}


def sum_tensors(
    mine: State | None,
    chosen: State,
    holders: int,
    collective: Collective,
    name: str,
    timeout_s: float | None,
) -> Report:
    """Return the tensors of this rank's state in the new world.  Collective.

    If a worker died, only the residual that it accumulated since it joined is lost.

    Parameters
    ----------
    mine : this rank's state of the old world; None if it was not part of it
    chosen : one rank's state of the old world, with every array replaced by [dtype, length]
    holders : number of ranks that have a state of the old world
    collective, name, timeout_s : the new world's collectives; name and time limit of the allreduces
    """
    sizes = holders, chosen["world_size"], collective.world_size
    tensors = {}
    for key in chosen["model"]:
        if key not in chosen["tensors"]:
            continue
        example, arrays = chosen["tensors"][key], {}
        for array_name, (dtype, length) in sorted(example["arrays"].items()):
            part = np.zeros(length, np.float64)
            if mine is not None:
                part[:] = np.asarray(mine["tensors"][key]["arrays"][array_name])
                part *= _weight_of(array_name, example, chosen["reduction"], *sizes)
            arrays[array_name] = collective.allreduce(part, name).wait(timeout_s).astype(dtype)
        forgotten = dict.fromkeys(("threshold", "memo", "exchange_memo"))
        tensors[key] = {**example, **forgotten, "arrays": arrays}
    return tensors
