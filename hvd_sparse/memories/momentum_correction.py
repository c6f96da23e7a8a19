"""DGC's momentum correction: velocities are selected from, so that delayed entries keep theirs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from hvd_sparse.checks import check_truth
from hvd_sparse.core.kernels.contract import Aim, Kernels, Taking, Zeros
from hvd_sparse.memories._directions import DirectionState, check_common, host_for_norms
from hvd_sparse.memories.double_buffer import DoubleBuffer
from hvd_sparse.registry import MEMORIES
from hvd_sparse.types import Selection, TensorSpec


@MEMORIES.register("momentum_correction")
@dataclass(frozen=True)
class MomentumCorrection:
    """Accumulate velocities rather than gradients, on every rank for itself.

        plain:     u' = momentum * u + gradient          v' = v + u'
        Nesterov:  u' = momentum * (u + gradient)        v' = v + u' + gradient
        v' is selected from; where an entry is sent v' = 0, and with masking u' = 0

    Parameters
    ----------
    momentum : float in [0, 1)
    nesterov : the Nesterov form
    masking : momentum factor masking: forget the velocity of what was sent
    weight_decay : L2 penalty, with momentum of its own:
        w' = momentum * w + weight_decay * parameter;  the optimizer is given reduced + w'
        (Nesterov: reduced + weight_decay * parameter + momentum * w')
    clip_norm : rescale every tensor's gradient, before it is accumulated, to a norm of at most
        clip_norm * sqrt(world_size), or clip_norm / sqrt(world_size) where Horovod sums: the
        average of N independent gradients has 1 / sqrt(N) of their norm, their sum sqrt(N) times

    Notes
    -----
    The optimizer must apply no momentum of its own: the reduced gradient is a velocity already.

    Behind an optimizer that was handed over (``optimizer=``) momentum, Nesterov and weight decay
    are those of the tensor's parameter group, at every step, and a step at a learning rate of 0
    sends nothing and keeps all.

    On a dense step all of v is sent and u is kept, so that a run of dense steps is momentum SGD.
    Tensors that are never compressed get the same momentum, applied to their reduced gradient.

    State: u and v, float32 (float64 for float64 gradients), and w with weight decay; all twice with
    rollback. Cost: one pass over both, two where a step has no threshold to begin with, and two
    writes an entry sent; one more to clip, two more for weight decay.

    Paper: lin2018dgc.  Departs: norms are clipped tensor by tensor, as the authors' later code
    does: the norm over all tensors is known only when the first have long been sent.
    """

    momentum: float = 0.9
    nesterov: bool = False
    masking: bool = True
    weight_decay: float = 0.0
    clip_norm: float | None = None

    paper: ClassVar[str | None] = "lin2018dgc"
    conserves: ClassVar[bool] = True
    keeps_rounding: ClassVar[bool] = True
    adds_gradient: ClassVar[bool] = False
    finishes: ClassVar[bool] = True
    counts_votes: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_common(self, "momentum")
        check_truth(self.nesterov, "nesterov of MomentumCorrection")
        check_truth(self.masking, "masking of MomentumCorrection")

    @property
    def needs_host(self) -> str:
        """Return why gradients are copied to the host; nothing where they need not be."""
        return host_for_norms(self)

    def create(self, spec: TensorSpec, *, rollback: bool) -> MomentumCorrectionState:
        return MomentumCorrectionState(spec, self, rollback)


class MomentumCorrectionState(DirectionState[MomentumCorrection]):
    """u and v of one tensor.  Implements ``MemoryState``."""

    def __init__(self, spec: TensorSpec, options: MomentumCorrection, rollback: bool) -> None:
        super().__init__(spec, options, rollback)
        self.momentum = DoubleBuffer(spec.numel, spec.accumulator, rollback=rollback)
        decays = bool(options.weight_decay)
        self.decay = DoubleBuffer(spec.numel if decays else 0, spec.accumulator, rollback=rollback)
        self._masked = self._sent.values

    def tune(self, *, rate: float, momentum: float, nesterov: bool, weight_decay: float) -> None:
        """Take over what the optimizer holds for this tensor now."""
        self.rate, options = rate, self._options
        if (momentum, nesterov, weight_decay) != (
            options.momentum,
            options.nesterov,
            options.weight_decay,
        ):
            self._options = replace(
                options, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay
            )
        if weight_decay:  # which a parameter group may be given in mid-run
            self._hold_decay()

    def _hold_decay(self) -> None:
        """Make the memory of weight decay, if there is none yet: many tensors never need it."""
        old = self.velocity.old
        if not self.decay.old.size:
            rollback = self.velocity.can_roll_back
            self.decay = DoubleBuffer(old.size, old.dtype, rollback=rollback)
            self.decay.move(self._zeros)

    def _direct(self, gradient: np.ndarray, kernels: Kernels, world_size: int) -> np.ndarray:
        u, options = self.momentum, self._options
        if not options.momentum:
            return gradient
        kernels.push_momentum(gradient, u.old, u.new, options.momentum, options.nesterov)
        direction: np.ndarray = u.new + gradient if options.nesterov else u.new
        return direction

    def _take(self, gradient: np.ndarray, kernels: Kernels, world_size: int, aim: Aim) -> Taking:
        u, v, options = self.momentum, self.velocity, self._options
        if not options.momentum:
            return kernels.accumulate_and_take(gradient, v.old, v.new, aim)
        return kernels.push_momentum_and_take(
            gradient, u.old, u.new, v.old, v.new, options.momentum, options.nesterov, aim
        )

    def update(
        self, sent: Selection, is_exact: bool, kernels: Kernels, is_taken: bool = False
    ) -> None:
        if self._is_held:
            return
        if not self.velocity.can_roll_back:
            # One buffer only: what leaves it must be known to undo the step.
            self._masked = self.momentum.new[sent.indices]
        super().update(sent, is_exact, kernels, is_taken)
        if self._options.masking:
            # Else stale velocities would go on pushing the sent entries in an old direction.
            kernels.clear(self.momentum.new, sent.indices)

    def take_all(self) -> np.ndarray:
        everything = super().take_all()
        if not self.velocity.can_roll_back and not self._is_held:
            self._masked = self.momentum.new.copy()
        return everything

    def finish(
        self,
        reduced: np.ndarray,
        parameter: np.ndarray,
        is_compressed: bool,
        kernels: Kernels,
    ) -> np.ndarray:
        """Return the gradient with momentum, for tensors never compressed, and with weight decay,
        for all.

        Parameters
        ----------
        reduced : the reduced gradient, flat
        parameter : the tensor's values, flat; for weight decay
        is_compressed : False for a tensor that is never compressed
        kernels : of the engine
        """
        options = self._options
        result: np.ndarray = reduced if is_compressed else self._momentum_of(reduced, kernels)
        if not options.weight_decay:
            return result
        pull = parameter * parameter.dtype.type(options.weight_decay)
        kernels.push_momentum(pull, self.decay.old, self.decay.new, options.momentum, False)
        if options.nesterov:
            result = result + pull + self.decay.new * pull.dtype.type(options.momentum)
        else:
            result = result + self.decay.new
        return result

    def _momentum_of(self, reduced: np.ndarray, kernels: Kernels) -> np.ndarray:
        direction = self._direct(reduced, kernels, 1)
        return direction if direction is not self.momentum.new else direction.copy()

    def commit(self) -> None:
        super().commit()
        self.momentum.commit()
        self.decay.commit()

    def roll_back(self) -> None:
        """Drop the new velocities, or give the sent entries back.

        Without second buffers the failed step's gradient stays in u and v, so nothing is lost.
        """
        if not self.velocity.can_roll_back:
            self.momentum.old[self._sent.indices] = self._masked
        super().roll_back()

    def _forget(self) -> None:
        super()._forget()
        self._masked = self._sent.values

    def move(self, zeros: Zeros) -> None:
        super().move(zeros)
        self.momentum.move(zeros)
        self.decay.move(zeros)

    def arrays(self) -> dict[str, np.ndarray]:
        return {
            "momentum": self.momentum.old,
            "residual": self.velocity.old,
            "decay": self.decay.old,
        }

    def load(self, arrays: dict[str, np.ndarray]) -> None:
        self.momentum.old[:] = arrays["momentum"]
        self.velocity.old[:] = arrays["residual"]
        if arrays["decay"].size:
            self._hold_decay()
        self.decay.old[:] = arrays["decay"]
