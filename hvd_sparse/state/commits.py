"""Commits of an elastic run: the states that each rank keeps so that all can resume from one.

When a worker dies, the other ranks notice it at different times: one has already committed or
rejoined, and another has not.  Every rank therefore keeps, besides its last commit, the states from
which another rank may resume.  A *point* identifies the states of all ranks at one time: the number
of the rejoining with which their world began (the generation), and the steps of every tensor.  All
ranks resume from the model of rank 0, and so from the point of its last commit.  docs/adr/0017
explains which ranks hold which states, and why these suffice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hvd_sparse.collectives.contract import Collective
from hvd_sparse.errors import RankMismatch
from hvd_sparse.state.checkpoint_file import with_arrays
from hvd_sparse.state.gathering import Gatherer
from hvd_sparse.state.redistribution import sum_tensors
from hvd_sparse.untyped import Report, State

Point = list[Any]
"""[generation, steps by tensor]: a list, because points are exchanged as JSON."""


@dataclass(frozen=True)
class Held:
    """A state that this rank keeps, and its world's generation, which is 0 before rejoining."""

    generation: int
    state: State

    @property
    def point(self) -> Point:
        return [
            self.generation,
            {key: tensor["steps"] for key, tensor in self.state["tensors"].items()},
        ]


class Commits:
    """This rank's commits, and the other states from which the ranks may resume.

    It keeps two commits, because another rank may be one commit behind.  Until both belong to the
    present world, it also keeps the state with which this world began, and the state at which this
    rank noticed a failure, because another rank may have committed there.
    """

    def __init__(self) -> None:
        self._generation = 0
        self._has_met = False
        self._is_rejoining = False
        self._commits: list[Held] = []
        self._base: Held | None = None
        self._loose: Held | None = None

    def commit(self, state: State) -> None:
        """Keep a state, which must not be modified afterwards, as the last commit."""
        new = Held(self._generation, state)
        older = [held for held in self._commits if held.point != new.point]
        self._commits = [new, *older[:1]]
        if (
            all(held.generation == self._generation for held in self._commits)
            and len(self._commits) > 1
        ):
            # Ranks are at most one commit apart, so every rank has committed in this world, and
            # none resumes from an earlier one.
            self._base = self._loose = None

    def go_back(self, state: State) -> State:
        """Return the last commit, and keep the present ``state`` until the ranks have rejoined."""
        live = Held(self._generation, state)
        if not self._is_rejoining and all(held.point != live.point for held in self._commits):
            self._loose = live
        self._is_rejoining = False
        self._generation = self._commits[0].generation
        return self._commits[0].state

    def rejoin(
        self, state: State, collective: Collective, name: str, timeout_s: float | None
    ) -> Report:
        """Return this rank's state in the new world.  Collective.

        Parameters
        ----------
        state : this rank's present state; without tensors if the rank is new
        collective, name, timeout_s : the new world's collectives, their name and time limit

        Raises
        ------
        RankMismatch : on all ranks, if one of them lacks the state from which the others resume
        ExchangeTimeout : a rank does not take part in time
        """
        self._is_rejoining = True
        live = Held(self._generation, with_arrays(state, np.asarray))
        kept = (live, *self._commits, self._base, self._loose)
        held = [each for each in kept if each is not None]
        gatherer = Gatherer(collective, name, timeout_s)
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
        is_holder = collective.rank in holders
        mine = next(each for each in held if each.point == point) if is_holder else None
        if len(holders) == collective.world_size == chosen["world_size"]:  # no rank changed
            assert mine is not None
            tensors = with_arrays(mine.state, np.asarray)["tensors"]
        else:
            tensors = sum_tensors(
                mine.state if mine else None, chosen, len(holders), collective, name, timeout_s
            )
        place = {
            "rank": collective.rank,
            "world_size": collective.world_size,
            "reduction": chosen["reduction"],
        }
        joined = Held(
            1 + max(each[0] for rank in told for each in rank["held"]),
            {**live.state, **place, "tensors": tensors},
        )
        self._base, self._loose = mine, joined
        # A barrier: a rank that commits after it knows that all ranks hold the joined state.
        gatherer.tell_all("joined")
        self._generation, self._is_rejoining = joined.generation, False
        return dict(joined.state)


def _agree(told: Sequence[State]) -> tuple[int, list[int]]:
    """Return the rank from whose point all ranks resume, and the ranks that hold this point."""
    met = [rank for rank, each in enumerate(told) if each["has_met"]]
    trained = [rank for rank, each in enumerate(told) if each["live"]["tensors"]]
    # Ignore the state of a new worker, from an older checkpoint, if there are ranks of the old
    # world.
    old = met or trained or list(range(len(told)))
    leader = old[0]
    point = told[leader]["held"][0]
    holders = [rank for rank in old if point in told[rank]["held"]]
    lacking = [
        rank for rank in old if rank not in holders and _was_there(told[rank]["held"], point)
    ]
    if lacking:
        raise RankMismatch(
            f"the ranks {lacking} hold no state of the step that rank {leader} resumes from: "
            f"{_difference(told, leader, lacking)}; give the compressor to the elastic state, so "
            "that all ranks resume from one commit; if it is there, a worker died in the last "
            "exchange of a step that only some ranks committed: start all ranks anew from a "
            "checkpoint"
        )
    return leader, holders


def _was_there(held: list[Point], point: Point) -> bool:
    """Return whether a rank took part in the world of a point.

    States of generation 0 only count for points of generation 0, because workers that joined later
    have such states too.
    """
    return bool(point[1]) and any(
        steps and generation <= point[0] and (generation > 0 or point[0] == 0)
        for generation, steps in held
    )


def _difference(told: Sequence[State], leader: int, lacking: list[int]) -> str:
    """Describe the first tensor whose steps differ."""
    steps = {rank: told[rank]["held"][0][1] for rank in (leader, *lacking)}
    for key in steps[leader]:
        made = sorted({each.get(key, 0) for each in steps.values()})
        if len(made) > 1:
            return f"tensor {key!r} has made {made} steps on the remaining workers"
    return "theirs are of another rejoining"
