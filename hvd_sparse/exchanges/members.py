"""Inputs and outputs of an exchange for one tensor in one step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Union

import numpy as np

from hvd_sparse.checks import count_from_density
from hvd_sparse.codecs.contract import Codec
from hvd_sparse.kernels.contract import Aim, Kernels, Moments
from hvd_sparse.memories.contract import Accumulated
from hvd_sparse.selectors.contract import Found, Selector
from hvd_sparse.types import Memo, Selection, TensorSpec
from hvd_sparse.wire.frame import decode_for

Part = tuple[slice, Union[np.ndarray, Selection]]
"""A range of a tensor, and the selection to add there, encoded or not."""


class Observed(NamedTuple):
    """Telemetry's measurements of one tensor in one step.

    kept_squared, accumulated_squared : squared L2 norms of the entries that were not sent, and of
        all
    waited : sum over the sent entries of the steps since each was last sent, or since the first
        step
    """

    kept_squared: float
    accumulated_squared: float
    waited: int


class Begun(NamedTuple):
    """A pass that was made, or launched on a device, and whose result was not read yet.

    gradient : the gradient that the pass adds, unscaled
    accumulated : the result of the pass; reading its entries waits for the device
    """

    gradient: np.ndarray
    accumulated: Accumulated


class Waiting(NamedTuple):
    """One tensor's accumulated vector, until its group is selected from.

    moments : of the vector; None if its pass had an aim
    aim, taken : the group's aim, and the entries that the pass took out of ``accumulated``; None if
        it had no aim, or there were too many entries
    norm : L2 norm of the vector, 0 unless telemetry is on
    """

    accumulated: np.ndarray
    moments: Moments | None
    aim: Aim | None
    taken: Selection | None
    norm: float


@dataclass(eq=False)
class Outgoing:
    """One tensor's contribution to one step: an encoded selection, or the whole vector.

    frame : uint8, the encoded selection; None on a dense step, and where the exchange encodes
    dense : the whole accumulated vector, flat; None on a sparse step
    entries : number of entries sent
    norm : L2 norm of the residual, 0 unless telemetry is on; measured before the sent entries are
        removed if they are known only after the exchange
    found : the selection and its cost; None on a dense step, and where another rank selects
    accumulated : the vector to select from, until the exchange is over; for exchanges that sum
        first, the gradient
    observed : telemetry's measurements; None without telemetry, and until the sent entries are
        known
    surplus : on a device, the residual and the entries that the pass took beyond the selection,
        which are added back with the bucket's sums; None if there are none, or they were added back
        at once
    """

    frame: np.ndarray | None = None
    dense: np.ndarray | None = None
    entries: int = 0
    norm: float = 0.0
    found: Found | None = None
    accumulated: np.ndarray | None = None
    observed: Observed | None = None
    surplus: tuple[np.ndarray, Selection] | None = None


class Arrival(NamedTuple):
    """The result of an exchange for one tensor.

    parts : selections to add up in this order, which is the same on all ranks
    left : the entries of this rank to remove from its residual; None if they were removed when the
        selection was sent
    returned : entries to add to this rank's residual: those that it received or merged but that
        were not applied
    memo : state for this tensor's next exchange, the same on all ranks, JSON-serializable
    is_finite : False if a partial sum has overflowed, which is known to all ranks; then the other
        fields are empty
    """

    parts: tuple[Part, ...]
    left: Selection | None = None
    returned: Selection | None = None
    memo: Memo = None
    is_finite: bool = True


BEYOND_RANGE = Arrival((), is_finite=False)
"""The arrival of a tensor whose sum is not finite on some rank.

That rank's message in the last phase has no frame for the tensor."""


@dataclass(eq=False)
class Member:
    """One tensor of a bucket, in one step.

    position : index among the registered tensors
    spec : size and dtypes of the whole tensor
    part : the range of entries whose residual this rank keeps
    steps : completed steps
    selector, codec, density : the parts and the density of this step
    outgoing : this rank's contribution
    memo : state left by the tensor's last exchange, the same on all ranks
    """

    position: int
    spec: TensorSpec
    part: slice
    steps: int
    selector: Selector
    codec: Codec
    density: float | None
    outgoing: Outgoing
    memo: Memo

    @property
    def selection(self) -> Selection:
        assert self.outgoing.found is not None
        return self.outgoing.found.selection

    @property
    def count(self) -> int:
        """k of the whole tensor."""
        assert self.density is not None
        return count_from_density(self.spec.numel, self.density)

    def decode(self, frame: np.ndarray, numel: int, kernels: Kernels) -> Selection:
        """Decode a frame that a rank sent for ``numel`` entries of this tensor; CorruptPayload if
        it does not fit."""
        return decode_for(self.spec.key, numel, self.spec.accumulator, self.codec, frame, kernels)
