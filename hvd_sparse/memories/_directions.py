"""Base classes of memories that compute an optimizer's directions and keep a residual of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np

from hvd_sparse.checks import check_number, check_truth, is_number
from hvd_sparse.errors import InvalidOption
from hvd_sparse.kernels.arrays import aligned_zeros
from hvd_sparse.kernels.contract import Aim, Kernels, Zeros
from hvd_sparse.kernels.optimizers import Direction, Momentum
from hvd_sparse.memories.contract import Accumulated, DoubleBuffer, Memory, ResidualState
from hvd_sparse.types import Selection, TensorSpec


class DirectionMemory(Memory):
    """Base class of the memories whose states accumulate an optimizer's directions."""

    weight_decay: float
    clip_norm: float | None

    adds_gradient: ClassVar[bool] = False
    finishes: ClassVar[bool] = True

    @property
    def needs_host(self) -> str:
        limit = self.clip_norm
        return "" if limit is None else f"with clip_norm {limit!r} takes norms on the host"

    def _check(self, *fractions: str) -> None:
        """Check the shared options. ``fractions`` are the names of options in [0, 1)."""
        owner, decay = type(self).__name__, self.weight_decay
        for name in fractions:
            value = getattr(self, name)
            if not is_number(value) or not 0 <= value < 1:
                raise InvalidOption(f"{name} of {owner} is {value!r}: a number in [0, 1)")
        if not is_number(decay) or decay < 0:
            raise InvalidOption(f"weight_decay of {owner} is {decay!r}: a number, 0 or more")
        if self.clip_norm is not None:
            check_number(self.clip_norm, f"clip_norm of {owner}", 0)


Options = TypeVar("Options", bound=DirectionMemory)


def directed(gradient: np.ndarray, direction: Direction | None, kernels: Kernels) -> np.ndarray:
    return gradient if direction is None else kernels.directed(gradient, direction)


def scaled(vector: np.ndarray, factor: float) -> np.ndarray:
    # Multiply by a scalar of the same dtype, because only newer versions of numpy treat a Python
    # float as one.
    product: np.ndarray = vector * vector.dtype.type(factor)
    return product


class Moments(NamedTuple):
    """Moments of averaged gradients, from an optimizer that ran without this memory.

    arrays : flat, by the names of a memory's arrays; empty if the memory shall start anew
    steps : number of steps that the optimizer has made so far
    ranks : number of ranks over which the gradients were averaged; 1 for a tensor that is never
        compressed
    """

    arrays: Mapping[str, np.ndarray]
    steps: int
    ranks: int


class DirectionState(ResidualState, Generic[Options]):
    """The residual of one tensor, which accumulates the optimizer's directions for this rank's
    gradients.

        residual' = residual + direction,  where sent entries become +0.0

    Subclasses compute the direction (``_direct``). An entry moves the parameter by the learning
    rate of the step in which it is sent. If the rate falls, old entries therefore weigh less, which
    gave better accuracy than the rate of their own step (docs/results/accuracy-ways.md). A step at
    rate 0 would lose its sent entries, so it sends nothing, adds nothing and keeps the residual.
    """

    _vectors: ClassVar[dict[str, str]]
    """For each array of a checkpoint, by its name, the attribute that holds the vector."""
    _switches: ClassVar[dict[str, Any]] = {}
    """Settings of optimizers that are not options of the memory, and their usual values."""

    def __init__(self, spec: TensorSpec, options: Options, rollback: bool) -> None:
        super().__init__(spec, rollback)
        self.rate = 1.0
        self._options = options
        self._parameter: np.ndarray | None = None
        self._zeros: Zeros = aligned_zeros
        self._is_held = self._is_climbing = False
        self._beside: tuple[object, ...] = ()
        self._switched = dict(self._switches)
        self._written: list[DoubleBuffer] = []

    def tune(
        self,
        *,
        rate: float,
        parameter: np.ndarray | None = None,
        moments: Moments | None = None,
        maximize: bool = False,
        **settings: Any,
    ) -> None:
        """Adopt the optimizer's current settings for this tensor.

        rate : learning rate
        parameter : the parameter's value, flat, if weight decay adds to the gradient
        moments : moments from which the memory continues; None keeps the memory's own
        maximize : the optimizer moves the parameter along the gradient instead of against it
        settings : options of the memory, and ``_switches``
        """
        self.rate, self._parameter, self._is_climbing = rate, parameter, maximize
        beside = maximize, *(settings.pop(name, usual) for name, usual in self._switches.items())
        if beside != self._beside:
            self._beside, self.settings = beside, ""
            self._switched = dict(zip(self._switches, beside[1:]))
        # This runs for every tensor in every step, so the options are created anew only if one
        # changed.
        if any(getattr(self._options, name) != value for name, value in settings.items()):
            self._options = replace(self._options, **settings)  # type: ignore[type-var]
            self.settings = ""
        if not self.settings:
            self.settings = f"{settings}{beside if any(beside) else ''}"
        if moments is not None:
            self._adopt(moments)

    def _adopt(self, moments: Moments) -> None:
        """Continue from an optimizer's moments, and keep the residual."""
        raise NotImplementedError

    def moments(self, steps: int, ranks: int) -> Moments:
        """Return the moments from which an optimizer can continue without this memory, after
        ``steps`` steps of the tensor."""
        raise NotImplementedError

    def _nothing_made(self) -> DoubleBuffer:
        """Return a vector without entries, in place of one that is allocated when it is needed."""
        return DoubleBuffer(0, self.residual.old.dtype, rollback=self.residual.can_roll_back)

    def _downhill(self, gradient: np.ndarray) -> np.ndarray:
        """Return the gradient, or its negative if the optimizer maximizes."""
        return scaled(gradient, -1) if self._is_climbing else gradient

    def _clipped(self, gradient: np.ndarray, world_size: int) -> np.ndarray:
        """Return the gradient, rescaled to the limit that ``clip_norm`` sets for one rank if it is
        longer.

        Independent gradients of this length have an average of length ``clip_norm`` over N ranks,
        because the average is 1 / sqrt(N) times as long as each gradient; if Horovod sums, their
        sum, sqrt(N) times as long as each, has length ``clip_norm``.
        """
        clip_norm, root = self._options.clip_norm, math.sqrt(world_size)
        if clip_norm is None:
            return gradient
        limit = clip_norm * root if self.is_average else clip_norm / root
        norm = math.sqrt(float(np.dot(gradient, gradient.astype(np.float64))))
        return gradient if norm <= limit else scaled(gradient, limit / norm)

    def _decayed(self, gradient: np.ndarray, world_size: int) -> np.ndarray:
        """Return the gradient plus the gradient of the L2 penalty. If Horovod sums, each of N ranks
        adds 1 / N of the latter."""
        decay = self._options.weight_decay / (1 if self.is_average else world_size)
        if not decay or self._parameter is None:
            return gradient
        decayed: np.ndarray = gradient + scaled(self._parameter, decay)
        return decayed

    def _need(self, name: str) -> None:
        if not getattr(self, name).old.size:
            setattr(self, name, self._another())

    def _another(self) -> DoubleBuffer:
        """Return a vector of zeros like the residual, on the residual's device."""
        old = self.residual.old
        made = DoubleBuffer(old.size, old.dtype, rollback=self.residual.can_roll_back)
        if self._zeros is not aligned_zeros:
            made.move(self._zeros)
        return made

    def _direct(
        self, gradient: np.ndarray, kernels: Kernels, world_size: int
    ) -> tuple[np.ndarray, Direction | None]:
        """Return a gradient and the direction that the kernels compute from it. If the direction is
        None, the gradient itself is accumulated."""
        raise NotImplementedError

    def compensate(
        self, gradient: np.ndarray, kernels: Kernels, world_size: int = 1, aim: Aim | None = None
    ) -> Accumulated:
        v, gradient = self.residual, self._clipped(self._downhill(gradient), world_size)
        self._is_held = self.rate == 0
        gradient, direction = self._direct(gradient, kernels, world_size)
        if aim is not None and not self._is_held:
            taking = kernels.accumulate_and_take(gradient, v.old, v.new, aim, direction)
            return Accumulated(v.new, None, taking)
        gradient = directed(gradient, direction, kernels)
        if self._is_held:
            return self._hold(gradient, kernels)
        return super().compensate(gradient, kernels)

    def _hold(self, direction: np.ndarray, kernels: Kernels) -> Accumulated:
        """Return an accumulated vector of zeros, from which nothing is selected. The direction is
        only used to check that the gradient is finite."""
        if self.residual.can_roll_back:
            self.residual.new[:] = self.residual.old
        moments = kernels.moments(direction)
        zeros = self._zeros(direction.size, direction.dtype)
        return Accumulated(
            zeros, kernels.moments(zeros) if moments.is_finite else moments, added=zeros
        )

    def update(
        self, sent: Selection, is_exact: bool, kernels: Kernels, is_taken: bool = False
    ) -> None:
        if not self._is_held:
            super().update(sent, is_exact, kernels, is_taken)

    def take_all(self) -> np.ndarray:
        new = self.residual.new
        return np.zeros(new.size, new.dtype) if self._is_held else super().take_all()

    def finish(
        self, reduced: np.ndarray, parameter: np.ndarray, is_compressed: bool, kernels: Kernels
    ) -> np.ndarray:
        """Return the reduced gradient itself if the tensor is compressed, and the optimizer's
        direction if it is never compressed."""
        return reduced if is_compressed else self._finished(reduced, parameter, kernels)

    def _finished(self, reduced: np.ndarray, parameter: np.ndarray, kernels: Kernels) -> np.ndarray:
        raise NotImplementedError

    def _note_written(self, *vectors: DoubleBuffer) -> None:
        """Make ``commit`` keep the new versions of these vectors, too."""
        self._written += [each for each in vectors if each not in self._written]

    def commit(self) -> None:
        super().commit()
        for vector in self._written:
            vector.commit()
        self._written = []

    def roll_back(self) -> None:
        super().roll_back()
        self._written = []

    def move(self, zeros: Zeros) -> None:
        self._zeros = zeros
        for name in self._vectors.values():
            getattr(self, name).move(zeros)

    def arrays(self) -> dict[str, np.ndarray]:
        return {name: getattr(self, vector).old for name, vector in self._vectors.items()}

    def load(self, arrays: dict[str, np.ndarray]) -> None:
        for name, attribute in self._vectors.items():
            vector, given = getattr(self, attribute), arrays[name]
            if vector.old.size != given.size:  # the vector is allocated only when it is needed
                vector = self._another() if given.size else self._nothing_made()
                setattr(self, attribute, vector)
            vector.old[:] = given

    def numbers(self) -> dict[str, float]:
        """Return the numbers of this state that a checkpoint stores, by name."""
        return {}

    def recall(self, numbers: Mapping[str, float]) -> None:
        """Restore the numbers that ``numbers`` returned; called after ``load``."""


class MomentumMemory(DirectionMemory):
    """Base class of the memories that apply the momentum of SGD."""

    momentum: float
    nesterov: bool

    def __post_init__(self) -> None:
        self._check("momentum")
        check_truth(self.nesterov, f"nesterov of {type(self).__name__}")


MomentumOptions = TypeVar("MomentumOptions", bound=MomentumMemory)


class VelocityState(DirectionState[MomentumOptions]):
    """The residual of one tensor, which accumulates the directions of SGD with momentum
    (``optimizers.Momentum``).

    If the momentum is 0 or the velocity has no entries, the gradient is accumulated and the
    velocity does not change, as in torch.
    """

    velocity: DoubleBuffer
    _switches: ClassVar[dict[str, Any]] = {"dampening": 0.0}
    _undamped_at = 0
    """Step of the tensor whose gradient starts the velocity, and is therefore not dampened; -1 if
    the velocity is older."""

    def _adopt(self, moments: Moments) -> None:
        given = moments.arrays.get("momentum")
        # Before Horovod's broadcast, an optimizer without a state gets zeros and no steps.
        has_begun = given is not None and (moments.steps > 0 or bool(given.any()))
        self._undamped_at = -1 if has_begun else self.step
        self._begin(given)

    def _begin(self, velocity: np.ndarray | None) -> None:
        raise NotImplementedError

    def moments(self, steps: int, ranks: int) -> Moments:
        velocity = self._velocity_of_sgd() if self._options.momentum else None
        return Moments({} if velocity is None else {"momentum": velocity}, steps, ranks)

    def _velocity_of_sgd(self) -> np.ndarray:
        """Return a copy of the velocity, scaled so that SGD can continue without this memory."""
        raise NotImplementedError

    @property
    def _momentum(self) -> float:
        return self._options.momentum

    def _damped(self, gradient: np.ndarray) -> np.ndarray:
        """Return the gradient, multiplied by 1 - dampening unless it starts the velocity."""
        dampening = self._switched["dampening"]
        if not (dampening and self._options.momentum) or self.step == self._undamped_at:
            return gradient
        return scaled(gradient, 1 - dampening)

    def _direct(
        self, gradient: np.ndarray, kernels: Kernels, world_size: int
    ) -> tuple[np.ndarray, Direction | None]:
        gradient, u, momentum = self._damped(gradient), self.velocity, self._momentum
        if not (u.old.size and momentum):
            return gradient, None
        self._note_written(u)
        return gradient, Momentum(u.old, u.new, momentum, self._options.nesterov)

    def _finished(self, reduced: np.ndarray, parameter: np.ndarray, kernels: Kernels) -> np.ndarray:
        result = directed(*self._direct(self._downhill(reduced), kernels, 1), kernels)
        return result.copy() if result is self.velocity.new else result
