from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hvd_sparse.checks import check_truth
from hvd_sparse.kernels.contract import Kernels
from hvd_sparse.kernels.optimizers import Momentum
from hvd_sparse.memories._directions import MomentumMemory, VelocityState, scaled
from hvd_sparse.registry import MEMORIES
from hvd_sparse.types import Selection, TensorSpec


@MEMORIES.register("momentum_correction")
@dataclass(frozen=True)
class MomentumCorrection(MomentumMemory):
    """Accumulate velocities instead of gradients, on every rank.

        plain:     u' = momentum * u + gradient        v' = v + u'
        Nesterov:  u' = momentum * u + gradient        v' = v + gradient + momentum * u'
        select from v'; where an entry is sent v' = 0, and with masking u' = 0

    Parameters
    ----------
    momentum : float in [0, 1)
    nesterov : use Nesterov's form
    masking : momentum factor masking: reset the velocity of sent entries
    weight_decay : L2 penalty, which has a momentum of its own: w' = momentum * w + weight_decay *
        parameter; the optimizer gets reduced + w' (Nesterov: reduced + weight_decay * parameter +
        momentum * w')
    clip_norm : rescale every tensor's gradient, before it is accumulated, to a norm of at most
        clip_norm * sqrt(world_size), or clip_norm / sqrt(world_size) if Horovod sums. The average
        of N independent gradients has 1 / sqrt(N) of their norm, and their sum sqrt(N) times their
        norm

    Notes
    -----
    The optimizer must apply no momentum of its own, because the reduced gradient is a velocity
    already.

    Method ``dgc`` has this memory.  If an SGD optimizer is passed (``optimizer=``), every other
    method uses ``MomentumFeedback``, and this memory only if it is named.

    A dense step sends all of v and keeps u, so a run of dense steps is SGD with momentum. For
    tensors that are never compressed, the same momentum is applied to the reduced gradient.

    State: u and v, float32 (float64 for float64 gradients), and w with weight decay; all twice with
    rollback. Cost: one pass over u and v (two in a step without a last threshold), and two writes
    per sent entry; one more pass to clip, two more for weight decay.

    Paper: lin2018dgc.  Departs: norms are clipped tensor by tensor, as in the authors' later code,
    because the norm over all tensors is known only after the first tensors have been sent.
    """

    momentum: float = 0.9
    nesterov: bool = False
    masking: bool = True
    weight_decay: float = 0.0
    clip_norm: float | None = None

    paper: ClassVar[str | None] = "lin2018dgc"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_truth(self.masking, "masking of MomentumCorrection")

    def create(self, spec: TensorSpec, *, rollback: bool) -> MomentumCorrectionState:
        return MomentumCorrectionState(spec, self, rollback)


class MomentumCorrectionState(VelocityState[MomentumCorrection]):
    """The velocity u and the residual v of one tensor, and the velocity w of its weight decay."""

    _vectors: ClassVar[dict[str, str]] = {
        "momentum": "velocity",
        "residual": "residual",
        "decay": "decay",
    }

    def __init__(self, spec: TensorSpec, options: MomentumCorrection, rollback: bool) -> None:
        super().__init__(spec, options, rollback)
        self.velocity = self._another()
        self.decay = self._another() if options.weight_decay else self._nothing_made()
        self._masked: np.ndarray | None = None

    def _begin(self, velocity: np.ndarray | None) -> None:
        self.velocity.old[:] = 0 if velocity is None else velocity
        self.decay.old[:] = 0

    def _velocity_of_sgd(self) -> np.ndarray:
        return self.velocity.old.copy()

    def update(
        self, sent: Selection, is_exact: bool, kernels: Kernels, is_taken: bool = False
    ) -> None:
        if self._is_held:
            return
        masks = self._options.masking and self.velocity in self._written
        if masks and not self.residual.can_roll_back:
            # There is only one buffer, so keep the entries that are masked, to undo the step.
            self._masked = self.velocity.new[sent.indices]
        super().update(sent, is_exact, kernels, is_taken)
        if masks:
            # Otherwise an old velocity would go on moving the sent entries in a stale direction.
            kernels.clear(self.velocity.new, sent.indices)

    def finish(
        self, reduced: np.ndarray, parameter: np.ndarray, is_compressed: bool, kernels: Kernels
    ) -> np.ndarray:
        """Return the reduced gradient plus weight decay. For tensors that are never compressed,
        momentum is applied first."""
        options = self._options
        result: np.ndarray = super().finish(reduced, parameter, is_compressed, kernels)
        if not options.weight_decay:
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
        """Drop the new velocities. Without second buffers, add the sent entries back to the
        vectors, which then keep the failed step's gradient."""
        if self._masked is not None:
            self.velocity.old[self._sent.indices] = self._masked
        super().roll_back()

    def _forget(self) -> None:
        super()._forget()
        self._masked = None
