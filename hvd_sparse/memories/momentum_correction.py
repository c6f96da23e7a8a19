"""DGC's momentum correction: velocities are selected from, so that delayed entries keep theirs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hvd_sparse.checks import check_number, check_truth, is_number
from hvd_sparse.core.kernels.contract import Aim, Kernels
from hvd_sparse.errors import InvalidOption
from hvd_sparse.memories.contract import Accumulated, accumulate
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
        clip_norm / sqrt(world_size): the sum of N independent gradients is sqrt(N) times as long

    Notes
    -----
    The optimizer must apply no momentum of its own: the reduced gradient is a velocity already.

    On a dense step all of v is sent and u is kept, so that a run of dense steps is momentum SGD.
    Tensors that are never compressed get the same momentum, applied to their reduced gradient.

    State: u and v, float32 (float64 for float64 gradients), and w with weight decay; all twice with
    rollback. Cost: two passes, and two writes an entry sent; one more to clip, two more for weight
    decay.

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

    def __post_init__(self) -> None:
        if not is_number(self.momentum) or not 0 <= self.momentum < 1:
            raise InvalidOption(
                f"momentum of MomentumCorrection is {self.momentum!r}: a number in [0, 1)"
            )
        if not is_number(self.weight_decay) or self.weight_decay < 0:
            raise InvalidOption(
                f"weight_decay of MomentumCorrection is {self.weight_decay!r}: a number, 0 or more"
            )
        if self.clip_norm is not None:
            check_number(self.clip_norm, "clip_norm of MomentumCorrection", 0)
        check_truth(self.nesterov, "nesterov of MomentumCorrection")
        check_truth(self.masking, "masking of MomentumCorrection")

    def create(self, spec: TensorSpec, *, rollback: bool) -> MomentumCorrectionState:
        return MomentumCorrectionState(spec, self, rollback)


class MomentumCorrectionState:
    """u and v of one tensor.  Implements ``MemoryState``."""

    def __init__(self, spec: TensorSpec, options: MomentumCorrection, rollback: bool) -> None:
        self.momentum = DoubleBuffer(spec.numel, spec.accumulator, rollback=rollback)
        self.velocity = DoubleBuffer(spec.numel, spec.accumulator, rollback=rollback)
        self.decay = DoubleBuffer(
            spec.numel if options.weight_decay else 0, spec.accumulator, rollback=rollback
        )
        self._options = options
        self._sent = Selection.empty(spec.numel, spec.accumulator)
        self._masked = self._sent.values

    def compensate(
        self,
        gradient: np.ndarray,
        kernels: Kernels,
        world_size: int = 1,
        aim: Aim | None = None,
    ) -> Accumulated:
        gradient = self._clip(gradient, world_size)
        u, v, options = self.momentum, self.velocity, self._options
        kernels.push_momentum(gradient, u.old, u.new, options.momentum, options.nesterov)
        if options.nesterov:
            # The gradient is added last, in the pass that can take the aim's entries.
            kernels.compensate(u.new, v.old, v.new)
            return accumulate(gradient, v.new, v.new, aim, kernels)
        return accumulate(u.new, v.old, v.new, aim, kernels)

    def _clip(self, gradient: np.ndarray, world_size: int) -> np.ndarray:
        if self._options.clip_norm is None:
            return gradient
        # The sum of N independent gradients is sqrt(N) times as long as one of them.
        limit = self._options.clip_norm / math.sqrt(world_size)
        norm = math.sqrt(float(np.dot(gradient, gradient.astype(np.float64))))
        return gradient if norm <= limit else gradient * gradient.dtype.type(limit / norm)

    def update(
        self, sent: Selection, is_exact: bool, kernels: Kernels, is_taken: bool = False
    ) -> None:
        if not self.velocity.can_roll_back:
            # One buffer only: what leaves it must be known to undo the step.
            self._sent, self._masked = sent, self.momentum.new[sent.indices]
        if is_exact and not is_taken:
            kernels.clear(self.velocity.new, sent.indices)
        elif not is_exact:
            self.velocity.new[sent.indices] -= sent.values
        if self._options.masking:
            # Else stale velocities would go on pushing the sent entries in an old direction.
            kernels.clear(self.momentum.new, sent.indices)

    def take_all(self) -> np.ndarray:
        everything = self.velocity.new.copy()
        if not self.velocity.can_roll_back:
            indices = np.arange(everything.size, dtype=np.uint32)
            self._sent, self._masked = (
                Selection(indices, everything, everything.size),
                self.momentum.new.copy(),
            )
        self.velocity.new[:] = 0
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
        u, options = self.momentum, self._options
        kernels.push_momentum(reduced, u.old, u.new, options.momentum, options.nesterov)
        return u.new + reduced if options.nesterov else u.new.copy()

    def commit(self) -> None:
        self.momentum.commit()
        self.velocity.commit()
        self.decay.commit()
        self._forget()

    def roll_back(self) -> None:
        """Drop the new velocities, or give the sent entries back.

        Without second buffers the failed step's gradient stays in u and v, so nothing is lost.
        """
        if not self.velocity.can_roll_back:
            self.velocity.old[self._sent.indices] += self._sent.values
            self.momentum.old[self._sent.indices] = self._masked
            self._forget()

    def _forget(self) -> None:
        self._sent = Selection.empty(self._sent.numel, self._sent.values.dtype)
        self._masked = self._sent.values

    def add(self, returned: Selection) -> None:
        self.velocity.old[returned.indices] += returned.values

    def arrays(self) -> dict[str, np.ndarray]:
        return {
            "momentum": self.momentum.old,
            "residual": self.velocity.old,
            "decay": self.decay.old,
        }

    def load(self, arrays: dict[str, np.ndarray]) -> None:
        self.momentum.old[:] = arrays["momentum"]
        self.velocity.old[:] = arrays["residual"]
        self.decay.old[:] = arrays["decay"]
