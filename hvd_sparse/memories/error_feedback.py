"""Error feedback: unsent entries are added to the next gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hvd_sparse.checks import check_choice
from hvd_sparse.memories._residual16 import STORED, Residual16State
from hvd_sparse.memories.contract import Memory, MemoryState, ResidualState
from hvd_sparse.registry import MEMORIES
from hvd_sparse.types import TensorSpec


@MEMORIES.register("error_feedback")
@dataclass(frozen=True)
class ErrorFeedback(Memory):
    """Keep the residual of every tensor: accumulated minus sent.

        accumulated = residual + gradient
        residual'   = accumulated, with the sent entries set to zero                 (exact codecs)
        residual'   = accumulated - decode(own message), at the sent entries         (lossy codecs)

    Parameters
    ----------
    residual : "float32"; "bfloat16" or "float16" keep it in half the memory

    Notes
    -----
    A 16-bit residual is rounded at every step, up or down at random so that it is right on average
    (``memories._residual16``); the state adds up the rounding errors (``rounding``).
    Entry by entry it does not conserve: an entry is off by less than 2**-7 (bfloat16) or 2**-10
    (float16) of itself.  The accumulated vector exists in float32 only while the tensor is
    compressed.  float16 holds magnitudes up to 65504.

    Sent entries are set to +0.0 rather than subtracted: the same for finite values, without a
    second rounding.

    State: one float32 vector a tensor (float64 for float64 gradients), two with rollback; half of
    it with 16 bits. Cost: one pass (read gradient and residual, write accumulated), and one write
    an entry sent; about ten passes more with 16 bits.

    Paper: stich2018sparsified.
    """

    residual: str = "float32"

    paper: ClassVar[str | None] = "stich2018sparsified"

    def __post_init__(self) -> None:
        check_choice(self.residual, "residual of ErrorFeedback", ("float32", *STORED))

    @property
    def conserves(self) -> bool:
        return self.residual == "float32"

    @property
    def needs_host(self) -> str:
        return "" if self.conserves else f"with residual {self.residual!r} rounds on the host"

    def create(self, spec: TensorSpec, *, rollback: bool) -> MemoryState:
        if self.residual != "float32":
            return Residual16State(spec, self.residual, rollback)
        return ResidualState(spec, rollback)
