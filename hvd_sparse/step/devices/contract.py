"""Contract of whoever knows of tensors whose vectors lie on a device, and the device's answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, Union

import numpy as np

from hvd_sparse.kernels.contract import Moments, Taking, Zeros

Answer = Union[Taking, Moments]
"""What a pass finds, of which the host knows nothing yet: reading it waits."""


class Late(Protocol):
    """A gradient that is taken in once its bucket is full, flat: where it is on the host, or on its
    way there from a device."""

    def is_here(self) -> bool:
        """Tell whether the copy is done; does not wait."""

    def array(self) -> np.ndarray:
        """Return it, and wait for it the first time."""


class Delivery(Protocol):
    """What a bucket waits for, on its way from devices to the host."""

    def is_here(self) -> bool:
        """Tell whether the copies are done, so that reading what they bring does not wait."""


class Devices(Protocol):
    """A policy of a compressor: where its tensors' vectors lie.  None where all are the host's."""

    def zeros_of(self, position: int) -> Zeros | None:
        """Return what makes vectors on a tensor's device; None for a tensor of the host."""

    def send(self, answers: Sequence[Answer], late: Sequence[Late]) -> Delivery:
        """Begin a bucket's passes, all together, and let their answers come to the host beside the
        gradients that are on their way; without a wait."""

    def together(self, walks: Sequence[Callable[[], None]]) -> None:
        """Run the walks of a bucket's tensors, none of which needs another.

        What several want to know of the device comes to the host by one copy and one wait, where
        that can be.
        """
