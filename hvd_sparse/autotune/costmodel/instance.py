"""What plans are compared on: the layers of a backward pass with the costs of one step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hvd_sparse.autotune.costmodel.costs import Line, Work
from hvd_sparse.errors import InvalidOption

NOTHING = np.empty(0)
"""Stands for zeros of every layer."""

Plan = tuple[int, ...]
"""Where each group of layers ends, in the order of the backward pass: (2, 5) is layers 0 to 1 and 2
to 4."""


@dataclass(frozen=True, eq=False)
class Instance:
    """Layers in the order of the backward pass, and what a group of them costs.

    Selecting and coding hold up the backward pass; messages go through one wire, one after the
    other.  A group is selected when its last gradient is ready, and then sent:

        compute end of group [i, j) = compute end of the group before + backward of i..j-1 +
        compute_s(i, j)
        wire end of group [i, j)    = max(wire end of the group before, compute end) + wire_s(i, j)
        end of the step             = wire end of the last group + late_s of all groups

    Attributes
    ----------
    backward_s : float64 [layers], seconds before each gradient is ready
    numel : int64 [layers], entries
    sent : float64 [layers], entries that a rank sends of each
    nbytes : float64 [layers], bytes that a node receives of each in the exchange's first collective
    wire : of that collective
    work : selecting and coding
    per_tensor : each tensor of a group is selected from when it is ready; else the group as one
        vector
    late : of the collectives behind the first, which begin when the backward pass is over
    late_nbytes : float64 [layers], what these bring
    """

    backward_s: np.ndarray
    numel: np.ndarray
    sent: np.ndarray
    nbytes: np.ndarray
    wire: Line
    work: Work = field(default_factory=Work)
    per_tensor: bool = True
    late: Line = Line(0.0, 0.0)
    late_nbytes: np.ndarray = field(default_factory=lambda: NOTHING)

    def __post_init__(self) -> None:
        if self.late_nbytes is NOTHING:
            object.__setattr__(self, "late_nbytes", np.zeros(len(self.nbytes)))
        for name in ("backward_s", "numel", "sent", "nbytes", "late_nbytes"):
            values = np.asarray(getattr(self, name), np.float64)
            if values.ndim != 1 or values.size != len(self.backward_s) or not values.size:
                raise InvalidOption(
                    f"{name} of an instance: one number for each of {len(self.backward_s)} layers, "
                    "at least 1"
                )
            object.__setattr__(self, name, values)
            object.__setattr__(self, f"_{name}", np.concatenate([[0.0], np.cumsum(values)]))
        own = self.work.select_s(self.numel) if self.per_tensor else np.zeros(self.size)
        object.__setattr__(self, "_own", np.concatenate([[0.0], np.cumsum(own)]))

    @property
    def size(self) -> int:
        """Number of layers."""
        return int(self.backward_s.size)

    def select_s(self, start: Any, stop: Any) -> Any:
        """Selecting from, and encoding, the group [start, stop); either may be an array."""
        coding = self.work.sent_s * self._between("_sent", start, stop)
        if self.per_tensor:
            return self._between("_own", start, stop) + coding
        return self.work.select_s(self._between("_numel", start, stop)) + coding

    def compute_s(self, start: Any, stop: Any) -> Any:
        """Backward pass and selection of a group."""
        return self._between("_backward_s", start, stop) + self.select_s(start, stop)

    def wire_s(self, start: Any, stop: Any) -> Any:
        """First collective of a group."""
        return self.wire(self._between("_nbytes", start, stop))

    def late_s(self, start: Any, stop: Any) -> Any:
        """The collectives behind the first."""
        return self.late(self._between("_late_nbytes", start, stop))

    def _between(self, name: str, start: Any, stop: Any) -> Any:
        prefix = getattr(self, name)
        return prefix[stop] - prefix[start]


def check_plan(plan: Sequence[int], size: int) -> Plan:
    """The plan; InvalidOption if it does not hold every layer once."""
    ends = tuple(int(stop) for stop in plan)
    if not ends or ends[-1] != size or ends[0] < 1 or any(a >= b for a, b in zip(ends, ends[1:])):
        raise InvalidOption(
            f"plan {ends} for {size} layers: the ends of its groups, ascending, the last one {size}"
        )
    return ends


def groups(plan: Plan) -> list[tuple[int, int]]:
    """First layer, and the one behind the last, of every group."""
    return list(zip((0, *plan[:-1]), plan))
