"""Redistribution of the ranks' states if the number of ranks changes.

In the course of a run, the optimizer gets the sum of the ranks' residuals times Horovod's factor:
1/N for Average on N ranks, a constant for Sum. This product must not change when N ranks become M
(docs/adr/0017):

    reduction  residual of each new rank       factor * sum over the new ranks
    Average    the mean of the N residuals     (1/M) * M * (sum / N)  =  (1/N) * sum
    Sum        the sum, divided by M           M * (sum / M)          =  sum

Velocities are redistributed like residuals. Arrays that are equal on all ranks, or that estimate
the same quantity on every rank, for example Adam's moments, are replaced by their mean. Thresholds
and measured densities are reset.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hvd_sparse.collectives.contract import Gatherer
from hvd_sparse.configuration import LOCAL
from hvd_sparse.errors import CorruptCheckpoint, RankMismatch
from hvd_sparse.state.checkpoint_file import with_arrays
from hvd_sparse.state.state_check import MALFORMED, check_form
from hvd_sparse.types import Report, State

REPLICATED = frozenset({"decay", "mean", "square", "largest", "sent_in"})
"""Names of memories' arrays that are equal, or estimate the same quantity, on all ranks."""
SHARED_FIELDS = ("version", "config", "model", "world_size", "reduction", "references")
"""Fields of a state that are equal on all ranks of a run."""

FORGOTTEN = dict.fromkeys(("threshold", "memo", "exchange_memo", "density"))
"""Fields of a tensor that depend on the number of ranks, and are reset when this number changes."""

Point = list[Any]
"""The place of a state in the run: [generation, completed steps by tensor]. The generation counts
how often the ranks have rejoined. A point is a list, because ranks exchange points as JSON."""


def redistribute(states: Sequence[State], world_size: int) -> list[Report]:
    """Return a state for each of ``world_size`` new ranks, in rank order. No residual is lost.

    states : ``Compressor.state_dict()`` of every old rank, in any order

    Raises
    ------
    RankMismatch : the states are not those of all ranks of one run at the same step
    CorruptCheckpoint : a state is not valid
    """
    _check_one_world(states)
    ordered = sorted(states, key=lambda state: int(state["rank"]))
    if len(ordered) == world_size:
        return [dict(state) for state in ordered]
    first, tensors = ordered[0], {}
    for key, shape_and_dtype in first["model"].items():
        given = [state["tensors"][key] for state in ordered if key in state["tensors"]]
        _check_whole(key, shape_and_dtype, given)
        if given:
            tensors[key] = _merge_tensor(given, first["reduction"], len(ordered), world_size)
    return [
        {**first, "rank": rank, "world_size": world_size, "tensors": tensors}
        for rank in range(world_size)
    ]


def _check_one_world(states: Sequence[State]) -> None:
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
            f"the states are of ranks {ranks} of a run with {first['world_size']} ranks: give "
            "each rank's state once"
        )
    for key in first["model"]:
        given = [state["tensors"][key] for state in states if key in state["tensors"]]
        steps = {int(tensor["steps"]) for tensor in given}
        if len(steps) > 1:
            raise RankMismatch(
                f"tensor {key!r} has made {sorted(steps)} steps on different ranks: give states "
                "saved at the same step"
            )
        if len(set(map(_lengths, given))) > 1:
            raise RankMismatch(
                f"tensor {key!r} has different arrays on different ranks: give the states of all "
                "ranks of one run"
            )


def _shared(state: State, field: str) -> object:
    """Return the value of a state's field that must be equal on all ranks. Of the field "config",
    this is a dict of those options that must be equal."""
    if field != "config":
        return state.get(field)
    return {option: value for option, value in state[field].items() if option not in LOCAL}


def _check_whole(key: str, shape_and_dtype: str, given: Sequence[State]) -> None:
    try:
        numel = math.prod(json.loads(shape_and_dtype.rpartition(" ")[0]))
    except MALFORMED:
        raise CorruptCheckpoint(f"its model has {shape_and_dtype!r} for tensor {key!r}") from None
    if any(length not in (0, numel) for tensor in given for _, length in _lengths(tensor)):
        raise RankMismatch(
            f"tensor {key!r} has {numel} entries, but each rank's residual has only a part of "
            "them, as exchange 'hierarchical' divides it: continue with as many ranks on each "
            "node, or without the states"
        )


def _lengths(tensor: State) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((name, len(array)) for name, array in tensor["arrays"].items()))


def _weight_of(
    name: str, tensor: State, reduction: str, holders: int, old_size: int, new_size: int
) -> float:
    """Return the factor that turns the sum of the old ranks' arrays called ``name`` into a new
    rank's array (see the module). ``holders`` is the number of arrays in this sum."""
    if name in REPLICATED or not tensor["is_sparse"]:
        return 1.0 / holders
    return 1.0 / (old_size if reduction == "average" else new_size)


def _merge_tensor(given: Sequence[State], reduction: str, count: int, size: int) -> Report:
    arrays = {}
    for name, example in given[0]["arrays"].items():
        weight = _weight_of(name, given[0], reduction, count, count, size)
        total = np.zeros(len(example), np.float64)
        for tensor in given:
            total += np.asarray(tensor["arrays"][name])
        arrays[name] = (total * weight).astype(np.asarray(example).dtype)
    return {**given[0], **FORGOTTEN, "arrays": arrays}


def sum_tensors(mine: State | None, chosen: State, holders: int, gatherer: Gatherer) -> Report:
    """Return the tensors of this rank's new state, after the number of ranks has changed. All ranks
    must call this, because allreduces sum the arrays of the old ranks.

    mine : this rank's old state; None if the rank is new
    chosen : the old state of any rank, with [dtype, length] in place of each array
    holders : number of ranks that have an old state
    """
    collective = gatherer.collective
    sizes = holders, chosen["world_size"], collective.world_size
    tensors = {}
    for key, example in chosen["tensors"].items():
        arrays = {}
        for array_name, (dtype, length) in sorted(example["arrays"].items()):
            part = np.zeros(length, np.float64)
            if mine is not None:
                part[:] = np.asarray(mine["tensors"][key]["arrays"][array_name])
                part *= _weight_of(array_name, example, chosen["reduction"], *sizes)
            summed = collective.allreduce(part, gatherer.name).wait(gatherer.timeout_s)
            arrays[array_name] = summed.astype(dtype)
        tensors[key] = {**example, **FORGOTTEN, "arrays": arrays}
    return tensors


@dataclass(frozen=True)
class Held:
    """A state that this rank keeps. ``generation`` is the number of times that the ranks had
    rejoined when the state was made. Ranks rejoin after workers have joined or left."""

    generation: int
    state: State

    @property
    def point(self) -> Point:
        steps = {key: tensor["steps"] for key, tensor in self.state["tensors"].items()}
        return [self.generation, steps]


class Commits:
    """The states of this rank from which the ranks of an elastic run may resume.

    Ranks notice a lost worker at different times, so a rank keeps more than its last commit:

    - its last two commits, because another rank may be one commit behind
    - its state at a failure, until the next rejoining, because another rank may have committed its
      state of the same step
    - after a rejoining, until the rank has made two commits: its own state of the step from which
      the ranks resumed, and the state after the rejoining (or the state at a failure, if the rank
      fails before)
    """

    def __init__(self) -> None:
        self._generation = 0
        self._has_met = False
        self._is_rejoining = False
        self._commits: list[Held] = []
        self._base: Held | None = None
        self._loose: Held | None = None

    def commit(self, state: State) -> None:
        """Keep a state as the last commit. The caller must not modify the state afterwards."""
        new = Held(self._generation, state)
        older = [held for held in self._commits if held.point != new.point]
        self._commits = [new, *older[:1]]
        if older and older[0].generation == self._generation:
            # Ranks are at most one commit apart, so none resumes from before the last rejoining.
            self._base = self._loose = None

    def go_back(self, state: State) -> State:
        """Return the state of the last commit, and keep ``state`` until the ranks have rejoined."""
        live = Held(self._generation, state)
        if not self._is_rejoining and all(held.point != live.point for held in self._commits):
            self._loose = live
        self._is_rejoining = False
        self._generation = self._commits[0].generation
        return self._commits[0].state

    def rejoin(self, state: State, gatherer: Gatherer) -> Report:
        """Return the state with which this rank continues after ranks have joined or left. All
        ranks must call this. ``state`` is the present state, without tensors if the rank is new.
        All raise RankMismatch if an old rank has no state of the step from which others resume."""
        self._is_rejoining = True
        live = Held(self._generation, with_arrays(state, np.asarray))
        kept = (live, *self._commits, self._base, self._loose)
        held = [each for each in kept if each is not None]
        told = gatherer.tell_all(
            {
                "has_met": self._has_met,
                "held": [each.point for each in held],
                "live": with_arrays(live.state, lambda array: [array.dtype.name, array.size]),
            }
        )
        leader, holders = _agree(told)
        self._has_met = True
        point, chosen = told[leader]["held"][0], told[leader]["live"]
        rank, size = gatherer.collective.rank, gatherer.collective.world_size
        mine = next(each for each in held if each.point == point) if rank in holders else None
        if len(holders) == size == chosen["world_size"]:  # no rank changed
            assert mine is not None
            tensors = with_arrays(mine.state, np.asarray)["tensors"]
        else:
            tensors = sum_tensors(mine.state if mine else None, chosen, len(holders), gatherer)
        # A new worker's learning rate may depend on the new number of ranks, so it takes the run's
        # ``references``.
        shared = {f: chosen[f] for f in ("reduction", "references") if f in chosen}
        place = {**shared, "rank": rank, "world_size": size}
        generation = 1 + max(point[0] for each in told for point in each["held"])
        joined = Held(generation, {**live.state, **place, "tensors": tensors})
        self._base, self._loose = mine, joined
        # After this barrier, a rank may commit, because all ranks have the joined state.
        gatherer.tell_all("joined")
        self._generation, self._is_rejoining = joined.generation, False
        return dict(joined.state)


def _agree(told: Sequence[State]) -> tuple[int, list[int]]:
    """Return the leader, from whose state all ranks resume, and the ranks that have their own state
    of the same step. Raises RankMismatch if another rank was in the run at that step, but has no
    state of it. ``told`` has each rank's description of its states."""
    met = [rank for rank, each in enumerate(told) if each["has_met"]]
    trained = [rank for rank, each in enumerate(told) if each["live"]["tensors"]]
    # If others were in the run, ignore new workers, which may have loaded an old checkpoint.
    old = met or trained or list(range(len(told)))
    leader = old[0]
    point = told[leader]["held"][0]
    holders = [rank for rank in old if point in told[rank]["held"]]
    lacking = [
        rank for rank in old if rank not in holders and _was_there(told[rank]["held"], point)
    ]
    if lacking:
        raise RankMismatch(
            f"ranks {lacking} have no state of the step from which rank {leader} resumes: "
            f"{_difference(told, leader, lacking)}; give the compressor to the elastic state, so "
            "that all ranks resume from one commit; if you did, a worker died in the last "
            "exchange of a step that only some ranks committed: start all ranks anew from a "
            "checkpoint"
        )
    return leader, holders


def _was_there(held: list[Point], point: Point) -> bool:
    """Return whether a rank whose kept states have the points ``held`` was in the run at ``point``.
    It was if one of its states is of the same or of an earlier generation. A state of generation 0
    counts only if ``point`` is of generation 0 too, because workers that came later also have such
    states."""
    return bool(point[1]) and any(
        steps and generation <= point[0] and (generation > 0 or point[0] == 0)
        for generation, steps in held
    )


def _difference(told: Sequence[State], leader: int, lacking: list[int]) -> str:
    steps = {rank: told[rank]["held"][0][1] for rank in (leader, *lacking)}
    for key in steps[leader]:
        made = sorted({each.get(key, 0) for each in steps.values()})
        if len(made) > 1:
            return f"tensor {key!r} has made {made} steps on the remaining workers"
    return "their states are from another elastic restart"
