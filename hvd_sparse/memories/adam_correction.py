from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from hvd_sparse.checks import check_number, option
from hvd_sparse.errors import NonFiniteGradient
from hvd_sparse.kernels.arrays import write_maximum
from hvd_sparse.kernels.contract import Kernels
from hvd_sparse.kernels.optimizers import Adam, AdamStep
from hvd_sparse.memories._directions import (
    Directed,
    DirectionMemory,
    DirectionState,
    OptimizerMoments,
    directed,
    scaled,
)
from hvd_sparse.registry import MEMORIES
from hvd_sparse.types import TensorSpec


@MEMORIES.register("adam_correction")
@dataclass(frozen=True)
class AdamCorrection(DirectionMemory):
    """Scale gradients as Adam does, on every rank before the selection, and accumulate the result.

        m' = beta1 * m + (1 - beta1) * gradient            mean = m / (1 - beta1**(t - 1))
        s' = beta2 * s + (1 - beta2) * gradient**2         square = s' / (1 - beta2**t)
        averaged = square / N + (1 - 1 / N) * min(mean**2, square)             for N ranks
        averaged = max(averaged, (1 - beta2) / (1 - beta2**t) * gradient**2 / 4)
        v' = v + gradient / (sqrt(averaged) + epsilon)
        select from v'; where an entry is sent v' = 0

    t is the number of the step, from 1; v is the residual. In the first step, averaged = square.

    Parameters
    ----------
    beta1 : float in [0, 1), decay of the mean m
    beta2 : float in [0, 1), decay of the second moment s
    epsilon : float > 0
    weight_decay : L2 penalty, which is taken from an Adam passed as ``optimizer=``, and must be 0
        without one. AdamW applies its decoupled weight decay itself
    clip_norm : bounds the norm of each tensor's gradient, as in ``MomentumCorrection``

    Notes
    -----
    Adam would not work after the exchange, because an entry arrives rarely, as the sum of many
    gradients. The entry's second moment is then too large compared with its mean, so its updates
    are too small, by a factor of about the square root of 1 / density.

    Each rank has only its own gradients. Their noise has N times the variance of the noise in the
    average gradient, so Adam would take shorter steps than with the average gradient. ``averaged``
    is the expected second moment of the average gradient, if the ranks' gradients have the same
    mean and independent noise. ``mean`` does not contain this step's gradient: if an entry's
    gradient is seldom not 0, as in the row of a rare word, the mean of about ten steps would rise
    with this gradient so far that the entry's updates would be several times too small. But if a
    gradient comes on all ranks at once after many steps without one, its update is larger than the
    sum of Adam's updates for it, about 1 / sqrt(1 - beta2). The maximum, which has no effect on
    fewer than 5 ranks, bounds the update to twice this sum. With amsgrad, there is no maximum.

    The residual accumulates the scaled gradient instead of the scaled mean m. An entry stays in v
    for about 1 / density steps, and v adds up the entry's gradients in this time. So a mean over
    the last ten steps would only delay the gradients (docs/results/accuracy-ways.md).

    The optimizer must only multiply the result by its learning rate; ``optimizer=`` ensures this.

    Tensors that are never compressed get Adam itself. For compressed tensors NAdam gives the same
    result as Adam, because they differ only in how they use the mean m, which is not accumulated
    here. At density 1 the result is not that of Adam: no entry stays in the residual, so gradients
    are not smoothed. With amsgrad, the largest s replaces s.

    State: m, s and v, float32 (float64 for float64 gradients), and the largest s with amsgrad. With
    rollback, each of these vectors is kept twice. Cost: one pass over m, s and v. A step without a
    previous threshold needs two passes, one of them over six vectors.

    Paper: kingma2015adam.  Derived here: the correction for the number of ranks, and the use of the
    residual instead of the mean m.
    """

    beta1: float = option(check_number, 0.9, low=0, high=1, with_low=True)
    beta2: float = option(check_number, 0.999, low=0, high=1, with_low=True)
    epsilon: float = option(check_number, 1e-8, low=0)
    weight_decay: float = option(check_number, 0.0, low=0, with_low=True)
    clip_norm: float | None = option(check_number, None, low=0)

    def create(self, spec: TensorSpec, *, rollback: bool) -> AdamCorrectionState:
        return AdamCorrectionState(spec, self, rollback)


class AdamCorrectionState(DirectionState):
    """The mean m, the second moment s and the residual v of one tensor (see ``AdamCorrection``).

    begun : number of the tensor's step in which m and s start, which the bias correction needs. If
        the memory has taken over an optimizer's moments, this is the tensor's step at that time
        minus the optimizer's number of steps, so it may be negative
    largest : the largest s so far; of length 0 unless the optimizer has amsgrad
    """

    _options: AdamCorrection
    _vectors: ClassVar[dict[str, str]] = {
        name: name for name in ("mean", "square", "largest", "residual")
    }

    _switches: ClassVar[dict[str, Any]] = {
        "amsgrad": False,  # use the largest s so far in place of s
        "is_epsilon_hat": False,  # epsilon is added before s is corrected for its bias
    }

    def __init__(self, spec: TensorSpec, options: AdamCorrection, rollback: bool) -> None:
        super().__init__(spec, options, rollback)
        self.mean, self.square = self.residual.like(), self.residual.like()
        self.largest = self.residual.like(0)
        self.begun = 0

    def _direct(self, gradient: np.ndarray, kernels: Kernels) -> Directed:
        gradient = directed(gradient, self._decay(), kernels)
        if not self.residual.can_roll_back:
            self._check_square(gradient, kernels)
        # Updates do not grow with gradients, so if Horovod sums N updates, each is divided by N.
        scale = 1.0 if self.is_average else 1 / self.world_size
        return self._push(gradient, kernels, self._numbers(self.world_size, scale))

    def _numbers(self, ranks: int = 1, scale: float = 1.0, is_of_mean: bool = False) -> AdamStep:
        options, step = self._options, self.step - self.begun + 1
        epsilon = options.epsilon
        if self._switched["is_epsilon_hat"]:
            epsilon /= math.sqrt(1 - options.beta2**step)
        return AdamStep(options.beta1, options.beta2, epsilon, step, ranks, scale, is_of_mean)

    def _unbiased(self, steps: int) -> tuple[float, float]:
        """Return the factors that correct m**2 and s, which start at 0, for their bias towards 0
        after ``steps`` steps."""
        options = self._options
        return 1 / (1 - options.beta1**steps) ** 2, 1 / (1 - options.beta2**steps)

    def _adopt(self, moments: OptimizerMoments) -> None:
        self.begun = self.step - moments.steps
        if self._switched["amsgrad"]:
            self._need("largest")
        mean, square = moments.arrays.get("mean"), moments.arrays.get("square")
        if mean is None or square is None:
            self.begun = self.step
            self.mean.old[:] = self.square.old[:] = self.largest.old[:] = 0
            return
        largest = moments.arrays.get("largest")
        if moments.steps and moments.ranks > 1:
            # The optimizer's second moment is that of an average, which has less noise.
            of_mean, of_square = self._unbiased(moments.steps)
            least = mean * mean * (of_mean / of_square)
            square = square + np.maximum(square - least, 0) * (moments.ranks - 1)
            if largest is not None:
                largest = largest + np.maximum(largest - least, 0) * (moments.ranks - 1)
        self.mean.old[:] = mean
        self.square.old[:] = square
        if self.largest.old.size:
            self.largest.old[:] = 0 if largest is None else largest

    def _moments(self, steps: int, ranks: int) -> OptimizerMoments:
        squares = {"square": self.square.old.copy()}
        if self.largest.old.size:
            squares["largest"] = self.largest.old.copy()
        mean, own = self.mean.old.copy(), steps - self.begun
        if own and ranks > 1:
            of_mean, of_square = self._unbiased(own)
            for name, square in squares.items():
                least = np.minimum(mean * mean * (of_mean / of_square), square)
                squares[name] = square / ranks + least * (1 - 1 / ranks)
        return OptimizerMoments({"mean": mean, **squares}, own, ranks)

    def _push(self, gradient: np.ndarray, kernels: Kernels, step: AdamStep) -> Directed:
        """Return a gradient, and the formula by which a kernel computes Adam's direction from it.
        With amsgrad, return the direction itself, and None in place of the formula. In this case
        the method updates m and s itself, because the direction needs the new largest s."""
        mean, square = self.mean, self.square
        self._note_written(mean, square)
        direction = Adam(mean.old, square.old, mean.new, square.new, step)
        if not self._switched["amsgrad"]:
            return gradient, direction
        self._need("largest")
        largest = self.largest
        first = mean.new if step.is_of_mean else scaled(mean.old, 1)
        kernels.directed(gradient, direction)
        write_maximum(largest.old, square.new, largest.new)
        self._note_written(largest)
        moments = first, largest.new
        at_rest = Adam(*moments, *moments, step._replace(is_at_rest=True))
        return kernels.directed(gradient, at_rest), None

    def _check_square(self, gradient: np.ndarray, kernels: Kernels) -> None:
        largest = kernels.moments(gradient).abs_max
        if largest * largest > float(np.finfo(gradient.dtype).max):
            raise NonFiniteGradient(
                f"its gradient has an entry of magnitude {largest:g}, whose square exceeds the "
                f"range of {gradient.dtype}: check the step's loss, lower the learning rate, or "
                "clip gradients before they are compressed"
            )

    def _finished(self, reduced: np.ndarray, kernels: Kernels) -> np.ndarray:
        if not self.residual.can_roll_back:
            self._check_square(reduced, kernels)
        # The reduced gradient is the ranks' average, so there is no correction for their number.
        return directed(*self._push(reduced, kernels, self._numbers(is_of_mean=True)), kernels)

    def numbers(self) -> dict[str, float]:
        """Return ``begun``, the step in which m and s started, for checkpoints; nothing if this is
        the tensor's first step."""
        return {"begun": self.begun} if self.begun else {}

    def recall(self, numbers: Mapping[str, float]) -> None:
        self.begun = int(numbers.get("begun", 0))
