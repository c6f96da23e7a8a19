from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hvd_sparse.checks import check_number, check_truth, option
from hvd_sparse.kernels.contract import Kernels
from hvd_sparse.kernels.optimizers import Momentum
from hvd_sparse.memories._directions import MomentumMemory, VelocityState, scaled
from hvd_sparse.registry import MEMORIES
from hvd_sparse.types import Selection, TensorSpec


@MEMORIES.register("momentum_correction")
@dataclass(frozen=True)
class MomentumCorrection(MomentumMemory):
    """Apply momentum on every rank before the selection; the residual accumulates velocities.

        plain:     u' = momentum * u + gradient        v' = v + u'
        Nesterov:  u' = momentum * u + gradient        v' = v + gradient + momentum * u'
        select from v'; where an entry is sent v' = 0, and with masking u' = 0
        weight decay: w' = momentum * w + weight_decay * parameter
        the optimizer gets reduced + w', or with Nesterov
                           reduced + weight_decay * parameter + momentum * w'

    u is the velocity of gradients, w that of weight decay, and v is the residual.

    Parameters
    ----------
    momentum : float in [0, 1)
    nesterov : use Nesterov's form
    masking : set the velocity of sent entries to 0 (momentum factor masking)
    weight_decay : L2 penalty, added after the exchange
    clip_norm : bounds the norm of each tensor's gradient. Each rank rescales its own gradient,
        before it is accumulated, to a norm of at most ``clip_norm * sqrt(world_size)``, or
        ``clip_norm / sqrt(world_size)`` if Horovod sums. The reason: the average of N independent
        gradients has ``1 / sqrt(N)`` of their norm, and the sum has ``sqrt(N)`` times their norm

    Notes
    -----
    The optimizer must not apply momentum, because the reduced gradient is already a velocity.

    A dense step sends all of v and keeps u, so a run with only dense steps is SGD with momentum.
    For tensors that are never compressed, the same momentum is applied to the reduced gradient.

    State: u and v, float32 (float64 for float64 gradients), and w with weight decay. With rollback,
    each vector is kept twice. Cost: one pass over u and v (two in a step without a previous
    threshold), and two writes per sent entry; one more pass to clip, two more for weight decay.

    Paper: lin2018dgc.  Departs: norms are clipped tensor by tensor, as in the authors' later code,
    because the norm over all tensors is known only after the first tensors have been sent.
    """

    momentum: float = option(check_number, 0.9, low=0, high=1, with_low=True)
    nesterov: bool = option(check_truth, False)
    masking: bool = option(check_truth, True)
    weight_decay: float = option(check_number, 0.0, low=0, with_low=True)
    clip_norm: float | None = option(check_number, None, low=0)

    needs_optimizer: ClassVar[str] = ""  # weight decay is added after the exchange

    @property
    def reads_parameter(self) -> bool:  # type: ignore[override]
        return self.weight_decay > 0

    def create(self, spec: TensorSpec, *, rollback: bool) -> MomentumCorrectionState:
        return MomentumCorrectionState(spec, self, rollback)


class MomentumCorrectionState(VelocityState):
    """The velocities of one tensor's gradient (u) and weight decay (w), and its residual v (see
    ``MomentumCorrection``)."""

    _options: MomentumCorrection
    _vectors: ClassVar[dict[str, str]] = {
        "momentum": "velocity",
        "residual": "residual",
        "decay": "decay",
    }

    def __init__(self, spec: TensorSpec, options: MomentumCorrection, rollback: bool) -> None:
        super().__init__(spec, options, rollback)
        self.velocity = self.residual.like()
        self.decay = self.residual.like() if options.weight_decay else self.residual.like(0)
        self._masked: np.ndarray | None = None

    def _begin(self, velocity: np.ndarray | None) -> None:
        self.velocity.old[:] = 0 if velocity is None else velocity
        self.decay.old[:] = 0

    def _velocity_of_sgd(self) -> np.ndarray:
        # SGD has one velocity for gradients and weight decay.
        velocity = self.velocity.old.copy()
        return velocity + self.decay.old.copy() if self.decay.old.size else velocity

    def update(self, sent: Selection, is_exact: bool, is_taken: bool = False) -> None:
        if self._is_held:
            return
        masks = self._options.masking and self.velocity in self._written
        if masks and not self.residual.can_roll_back:
            # There is no second buffer, so keep the masked entries, to undo the step.
            self._masked = self.velocity.new[sent.indices]
        super().update(sent, is_exact, is_taken)
        if masks:
            # Otherwise old gradients would go on moving the entries that were just sent.
            self.velocity.new[sent.indices] = 0.0

    @property
    def reads_parameter(self) -> bool:  # type: ignore[override]
        return self._options.reads_parameter or bool(self.decay.old.size)

    def finish(
        self, reduced: np.ndarray, parameter: np.ndarray, is_compressed: bool, kernels: Kernels
    ) -> np.ndarray:
        """Return the gradient for the optimizer, with weight decay added: the reduced gradient, or
        the velocity of a tensor that is never compressed."""
        options = self._options
        result: np.ndarray = super().finish(reduced, parameter, is_compressed, kernels)
        if not self.reads_parameter:
            return result
        pull = scaled(parameter, options.weight_decay)
        if not options.momentum:
            result = result + pull
            return result
        self._need("decay")  # weight decay may be set during a run
        pull = self._damped(pull)
        kernels.directed(pull, Momentum(self.decay.old, self.decay.new, options.momentum))
        self._note_written(self.decay)
        if options.nesterov:
            result = result + pull + scaled(self.decay.new, options.momentum)
        else:
            result = result + self.decay.new
        return result

    def roll_back(self) -> None:
        """Drop the new velocity and residual. Without second buffers, put the sent entries back
        into the residual, and their velocities, which were set to 0, into the velocity. Both then
        include the failed step's gradient."""
        if self._masked is not None:
            self.velocity.old[self._sent.indices] = self._masked
        super().roll_back()
        self._masked = None

    def commit(self) -> None:
        super().commit()
        self._masked = None
