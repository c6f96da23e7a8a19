"""Commits of an elastic run: the states that a rank keeps so that all can go on from one of them.

When a worker dies the other ranks notice it at different places: one has rejoined, or committed,
and another has not.  So every rank keeps, besides its last commit, the states that another rank may
have gone back to or gone on from.  A *point* names the states of all ranks at one time: the number
of the rejoining that their world began with, and the steps of every tensor.  The model that goes on
is rank 0's, so rank 0's last commit is the point that all ranks take, and a rejoining counts once
rank 0 has committed after it.  Which ranks hold which states, and why that suffices, is in
docs/adr/0017.
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
from hvd_sparse.state.rejoining import sum_tensors
from hvd_sparse.state.state_form import NewState, State

Point = list[Any]
"""The generation, and the steps by tensor: [int, dict].  A list, as it is after JSON, in which no
type can be given to each element."""


@dataclass(frozen=True)
class Held:
    """A state that this rank keeps.

    Attributes
    ----------
    generation : number of the rejoining that its world began with; 0 before the first
    state : the compressor's
    """

    generation: int
    state: State

    @property
    def point(self) -> Point:
        """Return the point of this state, which is the same on all ranks."""
        return [
            self.generation,
            {key: tensor["steps"] for key, tensor in self.state["tensors"].items()},
        ]


class Commits:
    """This rank's commits, and its part in rejoinings.

    Two commits are kept, as another rank may be one behind.  Until both are of this world, two more
    states are kept: the one that this world began with, and the one at which this rank noticed a
    failure, as another rank may have committed there.
    """

    def __init__(self) -> None:
        self._generation = 0
        self._has_met = False
        self._is_rejoining = False
        self._commits: list[Held] = []
        self._base: Held | None = None
        self._loose: Held | None = None

    def commit(self, state: State) -> None:
        """Keep a state as the last commit.

        Parameters
        ----------
        state : the compressor's, which nobody changes afterwards
        """
        new = Held(self._generation, state)
        older = [held for held in self._commits if held.point != new.point]
        self._commits = [new, *older[:1]]
        if (
            all(held.generation == self._generation for held in self._commits)
            and len(self._commits) > 1
        ):
            # two commits of this world: ranks are at most one commit apart, so every rank has
            # committed in it, and none goes back behind it
            self._base = self._loose = None

    def go_back(self, state: State) -> State:
        """Return the last commit, and keep the present state until the ranks have rejoined.

        Parameters
        ----------
        state : the compressor's present one
        """
        live = Held(self._generation, state)
        if not self._is_rejoining and all(held.point != live.point for held in self._commits):
            self._loose = live
        self._is_rejoining = False
        self._generation = self._commits[0].generation
        return self._commits[0].state

    def rejoin(
        self, state: State, collective: Collective, name: str, timeout_s: float | None
    ) -> NewState:
        """Return this rank's state in the new world.  Collective.

        Parameters
        ----------
        state : the state that this rank goes on from; without tensors if the rank is new
        collective : of the new world
        name : name of its collectives
        timeout_s : seconds that one of them may take

        Raises
        ------
        RankMismatch
            On all ranks, if one of them has lost the state that the others go on from.
        ExchangeTimeout
            If a rank does not take part in time.
        """
        self._is_rejoining = True
        live = Held(self._generation, with_arrays(state, np.asarray))
        held = [
            each for each in (live, *self._commits, self._base, self._loose) if each is not None
        ]
        gatherer = Gatherer(collective, name, timeout_s)
        told = gatherer.tell_all(
            {
                "has_met": self._has_met,
                "held": [each.point for each in held],
                "live": with_arrays(live.state, lambda array: [array.dtype.name, array.size]),
            }
        )
        leader, holders = agree(told)
        self._has_met = True
        point, chosen = told[leader]["held"][0], told[leader]["live"]
        mine = (
            next(each for each in held if each.point == point)
            if collective.rank in holders
            else None
        )
        if len(holders) == collective.world_size == chosen["world_size"]:  # nobody came or went
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
        # a barrier: a rank that gets past it, and commits, knows that all ranks hold that state
        gatherer.tell_all("joined")
        self._generation, self._is_rejoining = joined.generation, False
        return dict(joined.state)


def agree(told: Sequence[State]) -> tuple[int, list[int]]:
    """Return the rank whose point all ranks take, and the ranks that hold a state of that point.

    Parameters
    ----------
    told : of every rank, whether it has met the others before ("has_met"), the points that it holds
        ("held") and its present state without arrays ("live")

    Raises
    ------
    RankMismatch
        On all ranks, if a rank that was in the old world holds no state of that point.
    """
    met = [rank for rank, each in enumerate(told) if each["has_met"]]
    trained = [rank for rank, each in enumerate(told) if each["live"]["tensors"]]
    # a new worker's state, from an older checkpoint, does not count beside those of the old world
    old = met or trained or list(range(len(told)))
    leader = old[0]
    point = told[leader]["held"][0]
    holders = [rank for rank in old if point in told[rank]["held"]]
    lacking = [
        rank for rank in old if rank not in holders and _was_there(told[rank]["held"], point)
    ]
    if lacking:
        raise RankMismatch(
            f"the ranks {lacking} hold no state of the step that rank {leader} goes on from: "
            f"{_difference(told, leader, lacking)}; give the compressor to the elastic state, so "
            "that all ranks go on "
            "from one commit; if it is there, a worker died in the last exchange of a step that "
            "only some ranks "
            "committed: start all ranks anew from a checkpoint"
        )
    return leader, holders


def _was_there(held: list[Point], point: Point) -> bool:
    """Tell whether a rank took part in the world of a point.

    Generation 0 proves nothing after it, as a worker that came later brings states of it too.
    """
    return bool(point[1]) and any(
        steps and generation <= point[0] and (generation > 0 or point[0] == 0)
        for generation, steps in held
    )


def _difference(told: Sequence[State], leader: int, lacking: list[int]) -> str:
    """Name the first tensor whose steps differ."""
    steps = {rank: told[rank]["held"][0][1] for rank in (leader, *lacking)}
    for key in steps[leader]:
        made = sorted({each.get(key, 0) for each in steps.values()})
        if len(made) > 1:
            return f"tensor {key!r} has made {made} steps on the workers that go on"
    return "it is of another rejoining"
