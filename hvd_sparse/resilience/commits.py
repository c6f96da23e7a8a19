"""The states that a rank of an elastic run can go on from, whichever of them the ranks agree on.

When a worker dies the others notice it at different places: one has rejoined, or committed, and
another has not.  So every rank keeps, besides its last commit, what the others may have gone back
to or on from.  A *point* tells states of all ranks apart: the number of the rejoining that their
world began with, and the steps of every tensor.  The model that goes on is rank 0's, so its last
commit is the point that all ranks take, and a rejoining counts once rank 0 has committed after it.
Which ranks hold what, and why it suffices, is in docs/adr/0017.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hvd_sparse.collectives.contract import Collective
from hvd_sparse.errors import RankMismatch
from hvd_sparse.resilience.checkpoint_file import with_arrays
from hvd_sparse.resilience.gathering import Gatherer
from hvd_sparse.resilience.rejoining import sum_tensors

Point = list[Any]
"""Generation, and steps by tensor; JSON-able."""


@dataclass(frozen=True)
class Held:
    """A state of this rank.

    Attributes
    ----------
    generation : the number of the rejoining that its world began with; 0 before the first
    """

    generation: int
    state: Mapping[str, Any]

    @property
    def point(self) -> Point:
        """What all ranks call it."""
        return [
            self.generation,
            {key: tensor["steps"] for key, tensor in self.state["tensors"].items()},
        ]


class Commits:
    """This rank's commits, and its part in rejoinings.

    Two commits are kept, as another rank may be one behind.  Until both are of this world, so are
    two states more: what the world began with, and what it came to when this rank noticed a
    failure, as another may have committed there.
    """

    def __init__(self) -> None:
        self._generation = 0
        self._has_met = False
        self._is_rejoining = False
        self._commits: list[Held] = []
        self._base: Held | None = None
        self._loose: Held | None = None

    def commit(self, state: Mapping[str, Any]) -> None:
        """Remember a state."""
        new = Held(self._generation, state)
        older = [held for held in self._commits if held.point != new.point]
        self._commits = [new, *older[:1]]
        if (
            all(held.generation == self._generation for held in self._commits)
            and len(self._commits) > 1
        ):
            self._base = self._loose = None  # every rank has committed in this world

    def go_back(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """The last commit.

        state : what this rank has come to since
        """
        live = Held(self._generation, state)
        if not self._is_rejoining and all(held.point != live.point for held in self._commits):
            self._loose = live
        self._is_rejoining = False
        self._generation = self._commits[0].generation
        return self._commits[0].state

    def rejoin(
        self, state: Mapping[str, Any], collective: Collective, name: str, timeout_s: float | None
    ) -> dict[str, Any]:
        """This rank's state in the new world.  Collective.

        state : what this rank goes on from; without tensors if it is new
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
        gatherer.tell_all(
            "joined"
        )  # whoever gets past it, and commits, knows that all ranks hold what it commits
        self._generation, self._is_rejoining = joined.generation, False
        return dict(joined.state)


def agree(told: list[dict[str, Any]]) -> tuple[int, list[int]]:
    """The rank whose state the others join in, and the ranks that hold a state of that point.

    RankMismatch, on all ranks, if one that was there lost it.
    """
    met = [rank for rank, each in enumerate(told) if each["has_met"]]
    trained = [rank for rank, each in enumerate(told) if each["live"]["tensors"]]
    old = (
        met or trained or list(range(len(told)))
    )  # what a new worker has, of an older checkpoint, counts no more
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
    """Of generation 0 is also what a worker brought that came later."""
    return bool(point[1]) and any(
        steps and generation <= point[0] and (generation > 0 or point[0] == 0)
        for generation, steps in held
    )


def _difference(told: list[dict[str, Any]], leader: int, lacking: list[int]) -> str:
    """The first tensor whose steps differ."""
    steps = {rank: told[rank]["held"][0][1] for rank in (leader, *lacking)}
    for key in steps[leader]:
        made = sorted({each.get(key, 0) for each in steps.values()})
        if len(made) > 1:
            return f"tensor {key!r} has made {made} steps on the workers that go on"
    return "it is of another rejoining"
