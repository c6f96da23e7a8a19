from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvd_sparse.checks import check_choice, option
from hvd_sparse.errors import InvalidOption, NonFiniteGradient
from hvd_sparse.kernels.contract import Aim, Kernels
from hvd_sparse.memories.contract import (
    Addition,
    DoubleBuffer,
    Memory,
    MemoryState,
    Prepared,
    ResidualState,
)
from hvd_sparse.registry import MEMORIES
from hvd_sparse.types import Selection, TensorSpec
from hvd_sparse.wire.frame import crc32

STORED: dict[str, type] = {"bfloat16": np.uint16, "float16": np.float16}
"""The numpy dtype that stores each format. Numpy has no bfloat16, so uint16 holds its bits."""

LARGEST = {"bfloat16": 3.3895314e38, "float16": 65504.0}

SMALLEST_NORMAL = np.float32(2.0**-14)
"""The smallest normal float16. Smaller float16 numbers are multiples of 2**-24."""


@MEMORIES.register("error_feedback")
@dataclass(frozen=True)
class ErrorFeedback(Memory):
    """Keep the residual of every tensor: the accumulated vector minus the sent entries.

        accumulated = residual + gradient
        residual'   = accumulated, with the sent entries set to +0.0                 (exact codecs)
        residual'   = accumulated - decode(own message), at the sent entries         (lossy codecs)

    Parameters
    ----------
    residual : "float32"; "bfloat16" or "float16" keep the residual in half the memory

    Notes
    -----
    A 16-bit residual is rounded at every step, up or down at random so that the expectation is
    exact. Rounding to nearest would lose every gradient that is small compared with the residual.
    Rounding changes an entry by less than 2**-7 (bfloat16) or 2**-10 (float16) of the entry, and
    float16 entries below 2**-14 by up to 2**-24. So the sum of sent and kept entries is not exactly
    the accumulated vector. A float16 residual above 65504 raises PeerFailure. With float64
    gradients, 16 bits raise InvalidOption. The accumulated vector is in float32, and exists only
    while the tensor is compressed.

    State: one float32 vector per tensor (float64 for float64 gradients), two with rollback; a
    16-bit residual needs half of these bytes. Cost: one pass (read gradient and residual, write
    accumulated), and one write per sent entry; a 16-bit residual needs about ten more passes.

    Paper: stich2018sparsified.
    """

    residual: str = option(check_choice, "float32", choices=("float32", *STORED))

    @property
    def conserves(self) -> bool:  # type: ignore[override]
        return self.residual == "float32"

    @property
    def needs_host(self) -> str:  # type: ignore[override]
        return "" if self.conserves else f"with residual {self.residual!r} rounds on the host"

    def create(self, spec: TensorSpec, *, rollback: bool) -> MemoryState:
        if self.residual != "float32":
            return Residual16State(spec, self.residual, rollback)
        return ResidualState(spec, rollback)


class Residual16State(ResidualState):
    """The residual of one tensor in bfloat16 or float16."""

    def __init__(self, spec: TensorSpec, kind: str, rollback: bool) -> None:
        if spec.accumulator != np.float32:
            raise InvalidOption(
                f"tensor {spec.key!r} has {spec.dtype} gradients, and residual={kind!r} would "
                "keep only 16 of their 64 bits: use residual='float32', which keeps float64 "
                "residuals for float64 gradients"
            )
        super().__init__(spec, rollback)
        self._spec, self._kind = spec, kind
        self.residual = DoubleBuffer(spec.numel, STORED[kind], rollback=rollback)
        self._wide = np.empty(0, np.float32)

    def prepare(self, gradient: np.ndarray, kernels: Kernels, aim: Aim | None = None) -> Prepared:
        self._wide = widen(self.residual.old)
        return Addition(gradient, self._wide, self._wide, aim)

    def update(self, sent: Selection, is_exact: bool, is_taken: bool = False) -> None:
        if is_exact and not is_taken:
            self._wide[sent.indices] = 0.0
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
        wide, self._wide = self._wide, np.empty(0, np.float32)
        self._check(wide)
        if not self.residual.can_roll_back:
            self._sent = sent
        self._round(wide, self.residual.new, "")

    def _check(self, wide: np.ndarray) -> None:
        largest = float(np.abs(wide).max(initial=0.0))
        if largest > LARGEST[self._kind]:
            raise NonFiniteGradient(
                f"tensor {self._spec.key!r}: its residual has an entry of magnitude {largest:g}, "
                f"which {self._kind} cannot hold: use residual='bfloat16' or 'float32', or scale "
                "the gradients down"
            )

    def _round(self, wide: np.ndarray, out: np.ndarray, why: str) -> None:
        """Round a vector at random, up or down, and write the result to ``out``. The text ``why``
        is a part of the seed, so that different roundings of a step get different numbers."""
        narrow(wide, out, crc32(f"{self._spec.key}|{self.step}{why}".encode()))

    def roll_back(self) -> None:
        """Drop the new residual. Without a second buffer, add the sent entries back, and round the
        residual a second time; it then includes the failed step's gradient."""
        if self._sent is not self._nothing:
            self._add(self._sent, "|back")
        self._sent = self._nothing

    def add(self, returned: Selection) -> None:
        self._add(returned, "|returned")

    def _add(self, entries: Selection, why: str) -> None:
        wide = widen(self.residual.old)
        wide[entries.indices] += entries.values
        self._round(wide, self.residual.old, why)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the committed residual as float32, so checkpoints do not depend on the format."""
        return {"residual": widen(self.residual.old)}

    def load(self, arrays: dict[str, np.ndarray]) -> None:
        wide = np.ascontiguousarray(arrays["residual"], np.float32)
        self._check(wide)
        narrow(wide, self.residual.old, 0)


def widen(stored: np.ndarray) -> np.ndarray:
    """Return a residual, stored as float16 or bfloat16, as float32 [n]. The conversion is exact."""
    if stored.dtype == np.float16:
        return stored.astype(np.float32)
    return (stored.astype(np.uint32) << 16).view(np.float32)


def narrow(x: np.ndarray, out: np.ndarray, seed: int) -> None:
    """Write float32 numbers to ``out``, rounded up or down at random to the format of ``out``
    (float16, or the bits of bfloat16). No magnitude may exceed the largest finite number of this
    format."""
    dice = _dice(x.size, seed)
    bits = x.view(np.uint32)
    # Add a random number below one unit of the last kept bit, then cut the lower bits. The sum
    # carries into the kept bits with exactly the probability of rounding up.
    if out.dtype == np.uint16:
        np.right_shift(
            np.minimum(bits + (dice >> 16), _limit(bits, 0x7F7F)), 16, out=out, casting="unsafe"
        )
        return
    kept = 13
    cut = np.uint32(0xFFFFE000)
    rounded = np.minimum(bits + (dice >> (32 - kept)), _limit(bits, 0x477F, 0xE000)) & cut
    # Below the smallest normal float16 there are fewer bits, so round to a multiple of 2**-24.
    normal = rounded.view(np.float32)
    odds = (dice >> (32 - kept)).astype(np.float32) * np.float32(2.0**-kept)
    tiny = np.floor(np.abs(x) * np.float32(2.0**24) + odds) * np.float32(2.0**-24)
    out[:] = np.where(np.abs(x) < SMALLEST_NORMAL, np.copysign(tiny, x), normal)


def _limit(bits: np.ndarray, high: int, low: int = 0xFFFF) -> np.ndarray:
    """Return a limit for each number of ``bits``, as bits of a float32: the largest finite 16-bit
    number with the same sign. Without this limit, rounding could give infinity."""
    largest = np.uint32(high << 16 | low)
    limit: np.ndarray = largest | (bits & np.uint32(0x80000000))
    return limit


def _dice(count: int, seed: int) -> np.ndarray:
    """Return random numbers for rounding, uint32 [count], hashed from index and seed. The high bits
    of a number are more random than the low bits."""
    dice = np.arange(count, dtype=np.uint32)
    dice *= np.uint32(0x9E3779B1)
    dice ^= np.uint32(seed)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        dice ^= dice >> np.uint32(shift)
        dice *= np.uint32(factor)
    dice ^= dice >> np.uint32(16)
    return dice
