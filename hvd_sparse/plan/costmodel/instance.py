"""The instance on which plans are compared: layers of a backward pass, and the costs of a step."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from hvd_sparse.errors import InvalidOption
from hvd_sparse.plan.costmodel.lines import Line, Numbers

NOTHING = np.empty(0)
"""Value that stands for a zero for every layer."""

Plan = tuple[int, ...]
"""The end of each group of layers, in the order of the backward pass: (2, 5) is layers 0 to 1 and 2
to 4."""


@dataclass(frozen=True, eq=False)
class Instance:
    """Layers in the order of the backward pass, and the costs of a group of them.

    Selecting and coding hold up the backward pass; messages go through one wire, one after the
    other.  A group is selected from when its last gradient is ready, and then sent:

        compute end of group [i, j) = compute end of the group before + backward of i..j-1 +
        compute_s(i, j)
        wire end of group [i, j)    = max(wire end of the group before, compute end) + wire_s(i, j)
        end of the step             = wire end of the last group + late_s of all groups

    Attributes
    ----------
    backward_s : float64 [layers], seconds of the backward pass before each gradient is ready
    numel : float64 [layers], entries
    nbytes : float64 [layers], bytes that a node receives of each in the exchange's first collective
    wire : cost of that collective
    select : cost of selecting and encoding, over the entries of what is selected from at once
    per_tensor : each tensor of a group is selected from when it is ready; else the group as one
        vector
    late : cost of the collectives behind the first, which begin when the backward pass is over
    late_nbytes : float64 [layers], bytes that these bring
    """

    backward_s: np.ndarray
    numel: np.ndarray
    nbytes: np.ndarray
    wire: Line
    select: Line = Line(0.0, 0.0)
    per_tensor: bool = True
    late: Line = Line(0.0, 0.0)
    late_nbytes: np.ndarray = field(default_factory=lambda: NOTHING)

    def __post_init__(self) -> None:
        if self.late_nbytes is NOTHING:
            object.__setattr__(self, "late_nbytes", np.zeros(len(self.nbytes)))
        for name in ("backward_s", "numel", "nbytes", "late_nbytes"):
            values = np.asarray(getattr(self, name), np.float64)
            if values.ndim != 1 or values.size != len(self.backward_s) or not values.size:
                raise InvalidOption(
                    f"{name} of an instance: one number for each of {len(self.backward_s)} layers, "
                    "at least 1"
                )
            object.__setattr__(self, name, values)
            object.__setattr__(self, f"_{name}", np.concatenate([[0.0], np.cumsum(values)]))

    @property
    def size(self) -> int:
        """Return the number of layers."""
        return int(self.backward_s.size)

    def select_s(self, start: Numbers, stop: Numbers) -> Numbers:
        """Return the seconds of selecting and encoding of the group [start, stop).

        Either may be an int array [groups], as in the methods below.
        """
        entries_s = self.select.byte_s * self._between("_numel", start, stop)
        return entries_s + self.select.start_s * ((stop - start) if self.per_tensor else 1)

    def compute_s(self, start: Numbers, stop: Numbers) -> Numbers:
        """Return the seconds of the backward pass and the selection of a group."""
        return self._between("_backward_s", start, stop) + self.select_s(start, stop)

    def wire_s(self, start: Numbers, stop: Numbers) -> Numbers:
        """Return the seconds of a group's first collective."""
        return self.wire(self._between("_nbytes", start, stop))

    def late_s(self, start: Numbers, stop: Numbers) -> Numbers:
        """Return the seconds of a group's collectives behind the first."""
        return self.late(self._between("_late_nbytes", start, stop))

    def _between(self, name: str, start: Numbers, stop: Numbers) -> Numbers:
        prefix = getattr(self, name)
        return prefix[stop] - prefix[start]


def check_plan(plan: Sequence[int], size: int) -> Plan:
    """Return the plan, if it fits.

    Raises
    ------
    InvalidOption
        If the plan does not hold each of ``size`` layers once.
    """
    ends = tuple(int(stop) for stop in plan)
    if (
        not ends
        or ends[-1] != size
        or ends[0] < 1
        or any(a >= b for a, b in itertools.pairwise(ends))
    ):
        raise InvalidOption(
            f"plan {ends} for {size} layers: the ends of its groups, ascending, the last one {size}"
        )
    return ends


def groups(plan: Plan) -> list[tuple[int, int]]:
    """Return the range [start, stop) of every group's layers."""
    return list(zip((0, *plan[:-1]), plan))
