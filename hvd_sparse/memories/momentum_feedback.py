from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from hvd_sparse.checks import check_number, check_truth, option
from hvd_sparse.kernels.contract import Aim, Kernels
from hvd_sparse.memories._directions import Directed, MomentumMemory, VelocityState, directed
from hvd_sparse.memories.contract import DoubleBuffer, Prepared, Release
from hvd_sparse.registry import MEMORIES
from hvd_sparse.types import Selection, TensorSpec


@lru_cache(maxsize=64)
def shares_of(momentum: float) -> np.ndarray:
    """Return which part of an entry is sent, by its age (number of steps since it was last sent),
    float64 [ages]. The part is 1 - momentum**age, and 1 at the last age.

    Examples
    --------
    >>> shares_of(0.5)[:4].tolist()
    [0.0, 0.5, 0.75, 0.875]
    """
    ages = min(MOST_AGES, math.ceil(SMALL_REST / math.log(momentum)))
    shares: np.ndarray = 1 - np.power(momentum, np.arange(ages + 1))
    shares[-1] = 1
    return shares


SMALL_REST = -24 * math.log(2)
"""Logarithm of the rest of an entry that is so small that the whole entry is sent."""
MOST_AGES = 1 << 14
"""Older entries are sent whole, also if the momentum is so close to 1 that more would be left."""


@MEMORIES.register("momentum_feedback")
@dataclass(frozen=True)
class MomentumFeedback(MomentumMemory):
    """Let the residual, which delays gradients, replace the momentum. v is the residual, d the
    gradient + weight_decay * parameter.

        v' = v + d
        select from v'; where an entry is selected, send part * v' and keep (1 - part) * v'
        the optimizer gets reduced / (1 - momentum)

        part = 1 - momentum**age

    The age of an entry is the number of steps since it was last sent, or since the first step. On
    dense steps, and for tensors that are never compressed, a velocity u replaces v, as in SGD.

    Parameters
    ----------
    momentum : float in [0, 1)
    nesterov : use Nesterov's form
    weight_decay : L2 penalty, which is taken from an SGD passed as ``optimizer=``, and must be 0
        without one
    clip_norm : bounds the norm of each tensor's gradient, as in ``MomentumCorrection``

    Notes
    -----
    In SGD, a gradient moves the parameter by rate * gradient / (1 - momentum) in total, spread over
    the following steps. Here, an entry that is sent moves the parameter as far as SGD's momentum
    would have moved it since the entry was last sent. So an entry that is sent in every step moves
    exactly as under SGD with momentum, and an entry that has waited for many steps is sent nearly
    whole. If all entries were sent whole, those sent in every step would move as under SGD without
    momentum at 1 / (1 - momentum) times the rate. Training would then diverge at rates at which SGD
    with momentum is stable.

    When dense steps begin, v is moved to u, so that the first of them does not apply the whole
    residual at once. When they end, u is moved to v. The sum of the gradients that are still to be
    applied stays the same. A run with only dense steps is SGD with momentum.

    An entry may have accumulated over many steps. The learning rate and the momentum of the step in
    which the entry is sent apply to all of it.

    Without ``optimizer=``, the program's optimizer must not apply momentum.

    State: v, float32 (float64 for float64 gradients), and u after a dense step. With rollback, each
    of these is kept twice. If the momentum is above 0, a vector on the host keeps the step in which
    each entry was last sent. Cost: that of ``ErrorFeedback``, or of ``MomentumCorrection`` on dense
    steps; one more pass to clip. Weight decay reads the parameter in the same pass, or in one more
    pass on dense steps. The first dense step after sparse ones, and the first sparse step after
    dense ones, need two more passes, and allocate u and v anew.

    This method comes from no paper.
    """

    momentum: float = option(check_number, 0.9, low=0, high=1, with_low=True)
    nesterov: bool = option(check_truth, False)
    weight_decay: float = option(check_number, 0.0, low=0, with_low=True)
    clip_norm: float | None = option(check_number, None, low=0)

    def create(self, spec: TensorSpec, *, rollback: bool) -> MomentumFeedbackState:
        return MomentumFeedbackState(spec, self, rollback)


class MomentumFeedbackState(VelocityState):
    """The residual v of one tensor, and after dense steps its velocity u (see
    ``MomentumFeedback``)."""

    _vectors: ClassVar[dict[str, str]] = {"momentum": "velocity", "residual": "residual"}

    def __init__(self, spec: TensorSpec, options: MomentumFeedback, rollback: bool) -> None:
        super().__init__(spec, options, rollback)
        self.velocity = self.residual.like(0)
        self._sent_in = np.empty(0, spec.accumulator)
        self._before: tuple[DoubleBuffer, DoubleBuffer, np.ndarray] | None = None
        self._just_sent: np.ndarray | None = None

    @property
    def gain(self) -> float:  # type: ignore[override]
        """The factor by which the ranks' sum is multiplied, so that its scale is that of SGD."""
        return 1.0 if self.density == 1.0 else 1 / (1 - self._options.momentum)

    @property
    def _momentum(self) -> float:
        return self._options.momentum if self.density == 1.0 else 0.0

    @property
    def _ahead(self) -> float:
        """The fraction of a velocity that the next dense step adds to v if its gradient is 0."""
        momentum = self._options.momentum
        return momentum * momentum if self._options.nesterov else momentum

    def prepare(self, gradient: np.ndarray, kernels: Kernels, aim: Aim | None = None) -> Prepared:
        self._cross()
        self.release = None
        if self._options.momentum > 0 and self.density != 1.0:
            if not self._sent_in.size:
                self._sent_in = np.full(self.residual.old.size, -1, self.residual.old.dtype)
            self.release = Release(self._sent_in, self.step, shares_of(self._options.momentum))
        return super().prepare(gradient, kernels, aim)

    def _cross(self) -> None:
        """Before the first dense step, move v to u, and before the next sparse one u to v, so that
        the sum of the gradients that are still to be applied stays the same."""
        v, u, is_dense = self.residual, self.velocity, self.density == 1.0
        self._before = v, u, self._sent_in
        # At rate 0, the step sends nothing, and the residual stays as it is.
        stays = is_dense and not (self._options.momentum and (self.rate or not self._sent_in.size))
        if is_dense == bool(u.old.size) or stays:
            return
        self.residual = self.residual.like()
        if is_dense:
            self.velocity = self.residual.like()
            self.velocity.old[:] = v.old * (1 / self._ahead)
            return
        self.velocity = self.residual.like(0)
        # All entries count as sent long ago: if each had to wait for its next part, hardly anything
        # would be sent for a while.
        self._sent_in = self._sent_in[:0]
        self.residual.old[:] = v.old * (1 - self._options.momentum) + u.old * self._ahead

    def _begin(self, velocity: np.ndarray | None) -> None:
        has_velocity = bool(self.velocity.old.size)
        if velocity is None or not self._options.momentum:
            if velocity is None and has_velocity:
                self.velocity.old[:] = 0
        elif has_velocity:
            self.velocity.old[:] = velocity
        elif self.density == 1.0:
            self._cross()
            self.velocity.old[:] = self.velocity.old.copy() + velocity
        else:
            self.residual.old[:] = self.residual.old.copy() + velocity * self._ahead

    def update(self, sent: Selection, is_exact: bool, is_taken: bool = False) -> None:
        super().update(sent, is_exact, is_taken)
        if self._sent_in.size and not self._is_held:
            # A part that the codec rounds to 0 is not sent, so its entry gets older.
            self._just_sent = sent.indices if is_exact else sent.indices[sent.values != 0]

    def _velocity_of_sgd(self) -> np.ndarray:
        """Return a copy of the velocity, with which SGD can continue; zeros after sparse steps. The
        residual is not included, because SGD has no vector for it."""
        u, v = self.velocity.old, self.residual.old
        return u.copy() if u.size else np.zeros(v.size, v.dtype)

    def _direct(self, gradient: np.ndarray, kernels: Kernels) -> Directed:
        decay = self._decay()
        if not (self.velocity.old.size and self._momentum) and self._damped(gradient) is gradient:
            return gradient, decay
        return super()._direct(directed(gradient, decay, kernels), kernels)

    def _finished(self, reduced: np.ndarray, kernels: Kernels) -> np.ndarray:
        self.density = 1.0
        self._cross()
        return super()._finished(reduced, kernels)

    def commit(self) -> None:
        super().commit()
        if self._just_sent is not None:
            self._sent_in[self._just_sent] = self.step
        self._before = self._just_sent = None

    def roll_back(self) -> None:
        """Drop the new vectors. Without second buffers, add the sent entries to the residual."""
        if self._before is not None and self.residual.can_roll_back:
            self.residual, self.velocity, self._sent_in = self._before
        self._before = self._just_sent = None
        super().roll_back()

    def arrays(self) -> dict[str, np.ndarray]:
        return {**super().arrays(), "sent_in": self._sent_in}

    def load(self, arrays: dict[str, np.ndarray]) -> None:
        super().load(arrays)
        # States of earlier versions have no such array; their entries count as sent long ago.
        self._sent_in = arrays.get("sent_in", self._sent_in[:0]).astype(self.residual.old.dtype)
