"""Residual of 16 bits an entry."""

from __future__ import annotations

import numpy as np

from hvd_sparse.errors import InvalidOption, NonFiniteGradient
from hvd_sparse.kernels.contract import Aim, Kernels
from hvd_sparse.memories._stochastic_rounding import LARGEST, STORED, narrow, widen
from hvd_sparse.memories.contract import Accumulated
from hvd_sparse.memories.double_buffer import accumulate
from hvd_sparse.types import Selection, TensorSpec
from hvd_sparse.wire.checksum import crc32


class Residual16State:
    """The residual of one tensor in bfloat16 or float16.  Implements ``MemoryState``.

    Attributes
    ----------
    step : completed steps of the tensor, which the rounding's seed is made from
    rounding : the sum that rounding has added to the residual so far: gradients + rounding = sent +
        kept
    """

    def __init__(self, spec: TensorSpec, kind: str, rollback: bool) -> None:
        if spec.accumulator != np.float32:
            raise InvalidOption(
                f"tensor {spec.key!r} has {spec.dtype} gradients, and residual={kind!r} would keep "
                "a quarter of them: use residual='float32', which keeps float64 for those"
            )
        self._spec, self._kind = spec, kind
        self._kept: np.ndarray = np.zeros(spec.numel, STORED[kind])
        self._before: np.ndarray | None = np.zeros_like(self._kept) if rollback else None
        self._wide = np.empty(0, np.float32)
        self._sent = Selection.empty(spec.numel)
        self._is_written = False
        self._rounded = 0.0
        self.step = 0
        self.rounding = 0.0

    def compensate(
        self, gradient: np.ndarray, kernels: Kernels, world_size: int = 1, aim: Aim | None = None
    ) -> Accumulated:
        """Return the accumulated vector in float32, which exists only during the tensor's step."""
        self._wide = widen(self._kept)
        return accumulate(gradient, self._wide, self._wide, aim, kernels)

    def update(
        self, sent: Selection, is_exact: bool, kernels: Kernels, is_taken: bool = False
    ) -> None:
        if is_exact and not is_taken:
            kernels.clear(self._wide, sent.indices)
        elif not is_taken:
            self._wide[sent.indices] -= sent.values
        self._keep(sent)

    def take_all(self) -> np.ndarray:
        everything, self._wide = self._wide, np.zeros_like(self._wide)
        self._keep(
            Selection(np.arange(everything.size, dtype=np.uint32), everything, everything.size)
        )
        return everything

    def _keep(self, sent: Selection) -> None:
        """Round the vector into the residual, the sent entries being out of it already."""
        wide, self._wide = self._wide, np.empty(0, np.float32)
        largest = float(np.abs(wide).max(initial=0.0))
        if largest > LARGEST[self._kind]:
            raise NonFiniteGradient(
                f"tensor {self._spec.key!r}: its residual has an entry of magnitude {largest:g}, "
                f"which {self._kind} cannot hold: use residual='bfloat16' or 'float32', or scale "
                "the gradients down"
            )
        if self._before is not None:  # the old version stays there
            self._kept, self._before = self._before, self._kept
        else:
            self._sent = sent
        narrow(wide, self._kept, crc32(f"{self._spec.key}|{self.step}".encode()))
        self._rounded = float(np.subtract(widen(self._kept), wide, dtype=np.float64).sum())
        self._is_written = True

    def commit(self) -> None:
        self.rounding += self._rounded
        self._forget()

    def roll_back(self) -> None:
        """Return to the residual before the step.

        Without a second buffer the sent entries come back, rounded, and the failed step's gradient
        stays.
        """
        if self._is_written and self._before is not None:
            self._kept, self._before = self._before, self._kept
        elif self._is_written:
            wide = widen(self._kept)
            wide[self._sent.indices] += self._sent.values
            narrow(wide, self._kept, crc32(f"{self._spec.key}|{self.step}|back".encode()))
            self.rounding += self._rounded + float(
                np.subtract(widen(self._kept), wide, dtype=np.float64).sum()
            )
        self._forget()

    def _forget(self) -> None:
        self._is_written, self._rounded = False, 0.0
        self._sent = Selection.empty(self._spec.numel)

    def add(self, returned: Selection) -> None:
        wide = widen(self._kept)
        wide[returned.indices] += returned.values
        narrow(wide, self._kept, crc32(f"{self._spec.key}|{self.step}|returned".encode()))
        self.rounding += float(np.subtract(widen(self._kept), wide, dtype=np.float64).sum())

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the residual as float32, so that a checkpoint fits any kind of residual."""
        return {
            "residual": widen(
                self._before if self._is_written and self._before is not None else self._kept
            )
        }

    def load(self, arrays: dict[str, np.ndarray]) -> None:
        narrow(np.ascontiguousarray(arrays["residual"], np.float32), self._kept, 0)
