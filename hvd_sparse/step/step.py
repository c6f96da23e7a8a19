"""The step object: all tensors of a compressor, and the two halves of the step that they are in.

It holds all state of a compressor, and no collective: ``step.driver`` and the TensorFlow
frontend move bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import numpy as np

from hvd_sparse.configuration import Configuration
from hvd_sparse.kernels.contract import Kernels
from hvd_sparse.step.receiver import Receiver
from hvd_sparse.step.sender import Sender
from hvd_sparse.step.shared import Shared
from hvd_sparse.types import TensorSpec


class Step(Shared):
    """All tensors of a compressor and the step that they are in.

    Parameters
    ----------
    configuration : parts and options
    specs : the registered tensors, in the same order on every rank
    buckets : members of every bucket, by position
    kernels : the engine's kernels
    carrier_dtype : of carriers that travel alone; None takes the accumulator's, as dense steps do

    Attributes
    ----------
    sender : what this rank takes in and sends
    receiver : what all ranks sent, taken in
    """

    def __init__(
        self,
        configuration: Configuration,
        specs: Sequence[TensorSpec],
        buckets: Sequence[tuple[int, ...]],
        kernels: Kernels | ModuleType,
        carrier_dtype: type[np.floating] | None = None,
    ) -> None:
        super().__init__(configuration, specs, buckets, kernels, carrier_dtype)
        self.sender = Sender(self)
        self.receiver = Receiver(self)
