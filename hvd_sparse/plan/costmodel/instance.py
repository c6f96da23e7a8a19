"""An instance of the planning problem: layers of a backward pass, and costs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from hvd_sparse.errors import InvalidOption
from hvd_sparse.plan.costmodel.lines import Line, Numbers

NOTHING = np.empty(0)
"""Default that stands for a zero for every layer."""

Plan = tuple[int, ...]
"""The end of each group of layers in backward order; for example, (2, 5) has the groups of layers 0
to 1 and 2 to 4."""


@dataclass(frozen=True, eq=False)
class Instance:
    """Layers in backward order, and the costs of groups of them.

    Selecting and encoding interrupt the backward pass, and messages are sent one after the other.
    A group is selected after its last gradient, and then sent:

        compute end of group [i, j) = compute end of the group before + backward of i..j-1 +
        compute_s(i, j)
        wire end of group [i, j)    = max(wire end of the group before, compute end) + wire_s(i, j)
        end of the step             = wire end of the last group + late_s of all groups

    Attributes
    ----------
    backward_s : float64 [layers], seconds of the backward pass from the last gradient to each
    numel : float64 [layers], entries
    nbytes : float64 [layers], bytes that a node receives in the exchange's first collective
    wire : cost of the first collective, as a line in these bytes
    select : cost of selecting and encoding, as a line in the entries of one selection
    per_tensor : whether each tensor of a group is selected when it is ready; if False, the group is
        selected as one vector
    late : cost of the collectives after the first, which start after the backward pass
    late_nbytes : float64 [layers], bytes that a node receives in these
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
                    f"{name} of an instance has shape {list(values.shape)}: give one number for "
                    f"each of {len(self.backward_s)} layers, and at least one layer"
                )
            object.__setattr__(self, name, values)
            object.__setattr__(self, f"_{name}", np.concatenate([[0.0], np.cumsum(values)]))

    @property
    def size(self) -> int:
        """The number of layers."""
        return int(self.backward_s.size)

    def select_s(self, start: Numbers, stop: Numbers) -> Numbers:
        """Return the seconds of selecting and encoding the group [start, stop).

        Here and in the methods below, both may be int arrays [groups].
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
        """Return the seconds of a group's collectives after the first."""
        return self.late(self._between("_late_nbytes", start, stop))

    def _between(self, name: str, start: Numbers, stop: Numbers) -> Numbers:
        prefix = getattr(self, name)
        return prefix[stop] - prefix[start]


def check_plan(plan: Sequence[int], size: int) -> Plan:
    """Return the plan as a tuple of ints, if it is valid.

    Raises
    ------
    InvalidOption
        If the plan does not contain each of ``size`` layers once.
    """
    ends = tuple(int(stop) for stop in plan)
    if (
        not ends
        or ends[-1] != size
        or ends[0] < 1
        or any(a >= b for a, b in itertools.pairwise(ends))
    ):
        raise InvalidOption(
            f"plan {ends} is not valid for {size} layers: give the ends of its groups, ascending, "
            f"the last one {size}"
        )
    return ends


def groups(plan: Plan) -> list[tuple[int, int]]:
    """Return the range [start, stop) of every group's layers."""
    return list(zip((0, *plan[:-1]), plan))
