from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Union

import numpy as np

from hvd_sparse.checks import check_number, check_truth, option
from hvd_sparse.kernels.contract import Aim, Kernels
from hvd_sparse.kernels.optimizers import Direction
from hvd_sparse.memories._directions import MomentumMemory, VelocityState, directed
from hvd_sparse.memories.contract import Accumulated, DoubleBuffer, Release
from hvd_sparse.registry import MEMORIES
from hvd_sparse.types import Selection, TensorSpec


@lru_cache(maxsize=64)  # all tensors of a step have the same arguments
def momentum_left(momentum: float, density: float) -> float:
    """Return m, the momentum of the velocity at a density: the part that the residual does not
    replace (see ``MomentumFeedback``).

    Examples
    --------
    >>> [round(momentum_left(0.9, density), 3) for density in (1.0, 0.5, 0.2, 0.1, 0.01)]
    [0.9, 0.889, 0.833, 0.0, 0.0]
    """
    if density == 1.0 or not momentum or not density:
        return momentum if density else 0.0
    steps = momentum / (1 - momentum) - (1 / density - 1)
    return steps / (1 + steps) if steps > ROUNDING else 0.0


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
ROUNDING = 1e-6
"""If s (see ``MomentumFeedback``) is below this, it is a rounding error, and counts as 0."""


@MEMORIES.register("momentum_feedback")
@dataclass(frozen=True)
class MomentumFeedback(MomentumMemory):
    """Let the residual, which delays gradients, replace a part of the momentum. Scale the ranks'
    sum so that gradients have the same total effect as in SGD. v is the residual, u the velocity.

        u' = m * u + gradient + weight_decay * parameter
        v' = v + u', or v + gradient + weight_decay * parameter + m * u' with Nesterov
        select from v'; where an entry is selected, send part * v' and keep (1 - part) * v'
        the optimizer gets reduced * (1 - m) / (1 - momentum)

        m = s / (1 + s),  s = max(0, momentum / (1 - momentum) - (1 / density - 1))
        part = 1 - momentum**age if m is 0, otherwise 1

    The age of an entry is the number of steps since it was last sent, or since the first step. At
    densities up to 1 - momentum, m is 0, and there is no u: gradients are accumulated. On dense
    steps, and for tensors that are never compressed, m is ``momentum``, and the result is as in
    SGD.

    Parameters
    ----------
    momentum : float in [0, 1)
    nesterov : use Nesterov's form
    weight_decay : L2 penalty, which is taken from an SGD passed as ``optimizer=``, and must be 0
        without one
    clip_norm : bounds the norm of each tensor's gradient, as in ``MomentumCorrection``

    Notes
    -----
    Momentum smooths gradients over momentum / (1 - momentum) steps, and moves the parameter by rate
    * gradient / (1 - momentum) in total for each gradient. The residual smooths too, over about 1 /
    density - 1 steps, so a velocity would delay each gradient a second time. Therefore u smooths
    only over the difference of these two numbers of steps (s). In total, a gradient still counts
    1 / (1 - momentum) times.

    An entry that is sent in every step does not wait. If it were sent whole, it would move as under
    SGD without momentum at 1 / (1 - momentum) times the rate. Training would then diverge at rates
    at which SGD with momentum is stable. With parts, such an entry moves exactly as under SGD with
    momentum, and an entry that has waited for many steps is sent nearly whole. Some exchanges
    (gtopk, oktopk, shared_index) determine only afterwards which entries were sent. They send
    entries whole.

    If the density or the momentum changes, v and u are rescaled to the new m, so that the sum of
    the gradients that are still to be applied stays the same. If m becomes 0, u is added to v. If m
    was 0, v is moved to u, so that a dense step does not apply the whole residual at once. From one
    dense step to the next, u is not rescaled, so a run with only dense steps is SGD with momentum.

    An entry may have accumulated over many steps. The learning rate and the momentum of the step in
    which the entry is sent apply to all of it.

    With ``memory="momentum_feedback"`` and without ``optimizer=``, the program's optimizer must not
    apply momentum.

    State: v, float32 (float64 for float64 gradients), and u unless m is 0. With rollback, each of
    these is kept twice. If m is 0 and the momentum above 0, a vector on the host keeps the step in
    which each entry was last sent. Cost: that of ``ErrorFeedback`` if m is 0, otherwise that of
    ``MomentumCorrection``; one more pass to clip. Weight decay reads the parameter in the same
    pass, or in one more pass if m is above 0. A step whose m is not that of the step before needs
    two more passes, and allocates u and v anew.

    This method comes from no paper.
    """

    momentum: float = option(check_number, 0.9, low=0, high=1, with_low=True)
    nesterov: bool = option(check_truth, False)
    weight_decay: float = option(check_number, 0.0, low=0, with_low=True)
    clip_norm: float | None = option(check_number, None, low=0)

    def create(self, spec: TensorSpec, *, rollback: bool) -> MomentumFeedbackState:
        return MomentumFeedbackState(spec, self, rollback)


Scale = tuple[float, Union[float, None]]
"""A density and a momentum, to whose m the vectors v and u are scaled. The momentum is None in
states that earlier versions saved."""


class MomentumFeedbackState(VelocityState):
    """The residual v of one tensor, and its velocity u if m > 0 (see ``MomentumFeedback``)."""

    _vectors: ClassVar[dict[str, str]] = {"momentum": "velocity", "residual": "residual"}

    def __init__(self, spec: TensorSpec, options: MomentumFeedback, rollback: bool) -> None:
        super().__init__(spec, options, rollback)
        self.velocity = self._nothing_made()
        self._sent_in = self._nothing_made().old
        self._at: Scale | None = None
        self._before: tuple[DoubleBuffer, DoubleBuffer, np.ndarray, Scale | None] | None = None
        self._just_sent: np.ndarray | None = None

    @property
    def gain(self) -> float:  # type: ignore[override]
        """The factor by which the ranks' sum is multiplied, so that its scale is that of SGD:
        (1 - m) / (1 - momentum)."""
        return (1 - self._momentum) / (1 - self._options.momentum)

    @property
    def _momentum(self) -> float:
        """The velocity's momentum m. All ranks compute the same number."""
        return momentum_left(self._options.momentum, self.density or 0.0)

    @property
    def _momentum_before(self) -> float:
        """The velocity's momentum m of the last step, to which v and u are still scaled."""
        density, momentum = self._at or (self.density or 0.0, None)
        # After dense steps, u is SGD's velocity, which does not change with the momentum.
        if momentum is None or density == 1.0:
            momentum = self._options.momentum
        return momentum_left(momentum, density)

    def _ahead(self, momentum: float) -> float:
        """Return the fraction of a velocity with this ``momentum`` that the next step adds to the
        residual if its gradient is 0."""
        return momentum * momentum if self._options.nesterov else momentum

    def compensate(
        self, gradient: np.ndarray, kernels: Kernels, world_size: int = 1, aim: Aim | None = None
    ) -> Accumulated:
        self._cross()
        if self._sends_parts and not self._sent_in.size:
            self._sent_in = np.full(self.residual.old.size, -1, self.residual.old.dtype)
        return super().compensate(gradient, kernels, world_size, aim)

    def _cross(self) -> None:
        """Rescale the residual v and the velocity u if this step's density or momentum differs
        from the last step's. The rescaling keeps the sum of gradients that are not yet applied."""
        was, now, u, v = self._momentum_before, self._momentum, self.velocity, self.residual
        self._before = v, u, self._sent_in, self._at
        self._at = self.density or 0.0, self._options.momentum
        if now == was:
            if now:
                self._need("velocity")
            return
        self.residual = self._another()
        self.velocity = self._another() if now else self._nothing_made()
        if not now:
            # All entries count as sent long ago: if each had to wait for its next part, hardly
            # anything would be sent for a while.
            self._sent_in = self._sent_in[:0]
            self.residual.old[:] = v.old * (1 - was)
            if u.old.size:
                self.residual.old[:] = self.residual.old + u.old * self._ahead(was)
        elif not (was and u.old.size):
            self.velocity.old[:] = v.old * ((1 - was) / self._ahead(now))
        else:
            self.residual.old[:] = v.old * ((1 - was) / (1 - now))
            self.velocity.old[:] = u.old * (self._ahead(was) / self._ahead(now))

    def _begin(self, velocity: np.ndarray | None) -> None:
        momentum = self._options.momentum
        if velocity is None:
            self.velocity.old[:] = 0
        if velocity is None or not momentum:
            return
        left, owed = self._momentum_before, velocity * self._ahead(momentum)
        if left:
            self._need("velocity")
            self.velocity.old[:] = owed * (1 / self._ahead(left))
        else:
            self.residual.old[:] = self.residual.old.copy() + owed

    @property
    def release(self) -> Release | None:
        if not self._sends_parts:
            return None
        return Release(self._sent_in, self.step, shares_of(self._options.momentum))

    @property
    def _sends_parts(self) -> bool:
        return self._options.momentum > 0 and not self._momentum

    def update(
        self, sent: Selection, is_exact: bool, kernels: Kernels, is_taken: bool = False
    ) -> None:
        super().update(sent, is_exact, kernels, is_taken)
        if self._sent_in.size and not self._is_held:
            self._just_sent = sent.indices

    def _velocity_of_sgd(self) -> np.ndarray:
        """Return a copy of the velocity, rescaled to SGD's momentum, with which SGD can continue.
        The residual is not included, because SGD has no vector for it."""
        if not self.velocity.old.size:
            return np.zeros(self.residual.old.size, self.residual.old.dtype)
        share = self._ahead(self._momentum_before) / self._ahead(self._options.momentum)
        return self.velocity.old.copy() * share

    def _direct(
        self, gradient: np.ndarray, kernels: Kernels, world_size: int
    ) -> tuple[np.ndarray, Direction | None]:
        decay = self._decay(world_size)
        if not (self.velocity.old.size and self._momentum) and self._damped(gradient) is gradient:
            return gradient, decay
        return super()._direct(directed(gradient, decay, kernels), kernels, world_size)

    def _finished(self, reduced: np.ndarray, parameter: np.ndarray, kernels: Kernels) -> np.ndarray:
        self.density = 1.0
        self._cross()
        return super()._finished(reduced, parameter, kernels)

    def commit(self) -> None:
        super().commit()
        if self._just_sent is not None:
            self._sent_in[self._just_sent] = self.step
        self._before = self._just_sent = None

    def roll_back(self) -> None:
        """Drop the new vectors. Without second buffers, add the sent entries to the residual."""
        if self._before is not None and self.residual.can_roll_back:
            self.residual, self.velocity, self._sent_in, self._at = self._before
        self._before = self._just_sent = None
        super().roll_back()

    def arrays(self) -> dict[str, np.ndarray]:
        return {**super().arrays(), "sent_in": self._sent_in}

    def load(self, arrays: dict[str, np.ndarray]) -> None:
        super().load(arrays)
        # States of earlier versions have no such array; their entries count as sent long ago.
        self._sent_in = arrays.get("sent_in", self._sent_in[:0]).astype(self.residual.old.dtype)

    def numbers(self) -> dict[str, float]:
        """Return, for checkpoints, the "density" and the "momentum" of the step to which the
        residual and the velocity are scaled."""
        told = zip(("density", "momentum"), self._at or ())
        return {name: number for name, number in told if number is not None}

    def recall(self, numbers: Mapping[str, float]) -> None:
        has_any = "density" in numbers
        self._at = (numbers["density"], numbers.get("momentum")) if has_any else None
