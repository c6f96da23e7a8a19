"""The velocity of SGD with momentum, for memories that keep one."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from hvd_sparse.checks import check_truth
from hvd_sparse.kernels.contract import Aim, Kernels, Taking
from hvd_sparse.memories._directions import DirectionMemory, DirectionState, Moments
from hvd_sparse.memories.double_buffer import DoubleBuffer


class MomentumMemory(DirectionMemory):
    """Base class of the memories of SGD with momentum.

    Attributes
    ----------
    momentum : the part of the velocity that stays from one step to the next
    nesterov : directions look one step ahead
    """

    momentum: float
    nesterov: bool

    def __post_init__(self) -> None:
        self._check("momentum")
        check_truth(self.nesterov, f"nesterov of {type(self).__name__}")


Options = TypeVar("Options", bound=MomentumMemory)


class VelocityState(DirectionState[Options]):
    """Keep back the directions of SGD with momentum:

        velocity' = momentum * velocity + gradient
        direction = velocity', or gradient + momentum * velocity' with Nesterov

    A step without momentum, or a state without a velocity, takes the gradient for the direction.
    The velocity stays as it is meanwhile, as torch's does.

    Attributes
    ----------
    velocity : None where there is none
    """

    velocity: DoubleBuffer | None = None
    _dampening = 0.0
    _undamped_at = 0
    """Step whose gradient begins the velocity."""

    def tune(
        self,
        *,
        rate: float,
        momentum: float,
        nesterov: bool,
        weight_decay: float,
        parameter: np.ndarray | None = None,
        moments: Moments | None = None,
        dampening: float = 0.0,
        maximize: bool = False,
    ) -> None:
        """Adopt the optimizer's current settings for this tensor: ``_follow``.

        dampening : fraction of a gradient that the velocity leaves out, except on the first step
        """
        self._dampening = dampening
        if moments is not None:
            given = moments.arrays.get("momentum")
            # Horovod's broadcast makes zeros with no steps for an optimizer without a state.
            has_begun = given is not None and (moments.steps > 0 or bool(given.any()))
            self._undamped_at = -1 if has_begun else self.step
        self._follow(
            rate=rate,
            parameter=parameter,
            moments=moments,
            maximize=maximize,
            beside=(maximize, dampening),
            momentum=momentum,
            nesterov=nesterov,
            weight_decay=weight_decay,
        )

    def moments(self, steps: int, ranks: int) -> Moments:
        velocity = self._velocity_of_sgd() if self._options.momentum else None
        return Moments({} if velocity is None else {"momentum": velocity}, steps, ranks)

    def _velocity_of_sgd(self) -> np.ndarray:
        """Return a copy of the velocity from which SGD itself can continue."""
        raise NotImplementedError

    @property
    def _momentum(self) -> float:
        return self._options.momentum

    def _damped(self, gradient: np.ndarray) -> np.ndarray:
        """Return the part of a gradient that goes into the velocity."""
        if not (self._dampening and self._options.momentum) or self.step == self._undamped_at:
            return gradient
        part: np.ndarray = gradient * gradient.dtype.type(1 - self._dampening)
        return part

    def _direct(self, gradient: np.ndarray, kernels: Kernels, world_size: int) -> np.ndarray:
        gradient = self._damped(gradient)
        u, momentum = self.velocity, self._momentum
        if u is None or not momentum:
            return gradient
        kernels.push_momentum(gradient, u.old, u.new, momentum)
        self._note_written(u)
        if not self._options.nesterov:
            return u.new
        direction: np.ndarray = gradient + u.new * gradient.dtype.type(momentum)
        return direction

    def _take(self, gradient: np.ndarray, kernels: Kernels, world_size: int, aim: Aim) -> Taking:
        gradient = self._damped(gradient)
        u, v, momentum = self.velocity, self.residual, self._momentum
        if u is None or not momentum:
            return kernels.accumulate_and_take(gradient, v.old, v.new, aim)
        self._note_written(u)
        return kernels.push_momentum_and_take(
            gradient, u.old, u.new, v.old, v.new, momentum, self._options.nesterov, aim
        )

    def _momentum_of(self, reduced: np.ndarray, kernels: Kernels) -> np.ndarray:
        """Return the direction of a tensor that is never compressed: ``reduced`` itself or a new
        vector."""
        direction = self._direct(reduced, kernels, 1)
        is_kept = self.velocity is not None and direction is self.velocity.new
        return direction.copy() if is_kept else direction
