"""Contract of whoever knows of tensors whose vectors lie on a device, and the device's answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Union

from hvd_sparse.core.kernels.contract import Moments, Taking, Zeros

Answer = Union[Taking, Moments]
"""What a pass finds, of which the host knows nothing yet: reading it waits."""


class Delivery(Protocol):
    """Answers of a device on their way to the host, in one copy."""

    def is_here(self) -> bool:
        """Tell whether the copy is done, so that reading an answer does not wait."""


class Devices(Protocol):
    """A policy of a compressor: where its tensors' vectors lie.  None where all are the host's."""

    def zeros_of(self, position: int) -> Zeros | None:
        """Return what makes vectors on a tensor's device; None for a tensor of the host."""

    def send(self, answers: Sequence[Answer]) -> Delivery:
        """Begin a bucket's passes, all together, and let their answers come to the host; without a
        wait."""
