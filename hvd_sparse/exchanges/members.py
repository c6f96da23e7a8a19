"""Values that an exchange is given and gives back, of one tensor in one step."""

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
"""A piece of a tensor, and the selection to add there, encoded or not."""


class Observed(NamedTuple):
    """Norms and waiting times that telemetry takes of one tensor's step.

    Attributes
    ----------
    kept_squared, accumulated_squared : squared L2 norms of what was not sent, and of what there was
        to send
    waited : steps since they were last sent, or since the first one, added up over the entries that
        are sent
    """

    kept_squared: float
    accumulated_squared: float
    waited: int


class Begun(NamedTuple):
    """A pass that a device was given, before the host knows what it finds.

    Attributes
    ----------
    gradient : that is added, unscaled
    accumulated : what the pass makes; reading what it found waits for the device
    """

    gradient: np.ndarray
    accumulated: Accumulated


@dataclass(eq=False)
class Outgoing:
    """The content that one tensor sends in one step: a frame, or everything.

    Attributes
    ----------
    frame : uint8, the encoded selection; None on a dense step, and where the exchange encodes
    dense : everything accumulated, flat; None on a sparse step
    entries : how many entries are sent
    norm : L2 norm of the residual, 0 unless telemetry is on; before anything leaves, where that is
        known only later
    found : the selection and its cost; None on a dense step, and where another rank selects
    accumulated : the vector to select from, until that and the exchange are over; or, where the
        exchange sums first, the gradient
    moments : of the accumulated vector, where the selection waits for the group's other tensors
        and its pass had no aim
    observed : telemetry's finds; None without it, and where what leaves is not known yet
    begun : the pass on a device; nothing else is known then.  None on the host
    aim, taken : the group's aim while the selection waits, and the entries that the pass took out
        of ``accumulated``; None where it had no aim, or they were too many
    surplus : on a device, the vector of what is kept back and entries that the pass took too much,
        which go back to it with the bucket's sums; None where there are none, or they went at once
    """

    frame: np.ndarray | None = None
    dense: np.ndarray | None = None
    entries: int = 0
    norm: float = 0.0
    found: Found | None = None
    accumulated: np.ndarray | None = None
    moments: Moments | None = None
    observed: Observed | None = None
    begun: Begun | None = None
    aim: Aim | None = None
    taken: Selection | None = None
    surplus: tuple[np.ndarray, Selection] | None = None


class Arrival(NamedTuple):
    """The result of an exchange for one tensor.

    Attributes
    ----------
    parts : pieces to add up, in this order, which is the same on all ranks
    left : the entries of this rank that are accounted for, and no longer kept back; None where
        sending settled it
    returned : entries that this rank keeps back, of those it was sent or could not pass on; added
        to the residual
    memo : state for this tensor's next exchange, the same on all ranks, JSON-able
    is_finite : False where a sum on the way left the range of floats, which all ranks learn; then
        there is nothing else
    """

    parts: tuple[Part, ...]
    left: Selection | None = None
    returned: Selection | None = None
    memo: Memo = None
    is_finite: bool = True


BEYOND_RANGE = Arrival((), is_finite=False)
"""The arrival of a tensor of which some rank could pass nothing on, as it is not finite there.

That rank's message of the last phase has no frame for it."""


@dataclass(eq=False)
class Member:
    """One tensor of a bucket, in one step.

    Attributes
    ----------
    position : among the registered tensors
    spec : of the whole tensor
    part : the entries that this rank keeps back for
    steps : completed steps
    selector, codec : at the density of this step
    density : asked for at this step, or None
    outgoing : the content that this rank sends
    memo : state that the tensor's last exchange left, the same on all ranks
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
        """Return the entries that this rank has selected."""
        assert self.outgoing.found is not None
        return self.outgoing.found.selection

    @property
    def count(self) -> int:
        """Return k, of the whole tensor."""
        assert self.density is not None
        return count_from_density(self.spec.numel, self.density)

    def decode(self, frame: np.ndarray, numel: int, kernels: Kernels) -> Selection:
        """Return the selection of a frame that a rank sent.

        Raises
        ------
        CorruptPayload : the frame is not of ``numel`` entries of this tensor
        """
        return decode_for(self.spec.key, numel, self.spec.accumulator, self.codec, frame, kernels)
