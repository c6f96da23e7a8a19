"""Base classes of memories whose residuals accumulate an optimizer's directions, not gradients. A
direction is the vector by which the optimizer would move a parameter, before it is multiplied by
the learning rate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Union

import numpy as np

from hvd_sparse.kernels.contract import Aim, Kernels, Zeros
from hvd_sparse.kernels.optimizers import Decay, Direction, Momentum
from hvd_sparse.memories.contract import (
    Accumulated,
    Addition,
    DoubleBuffer,
    Memory,
    Prepared,
    ResidualState,
)
from hvd_sparse.types import Selection, TensorSpec

Directed = tuple[np.ndarray, Union[Direction, None]]
"""A vector derived from the gradient, and the formula (``Direction``) by which a kernel computes
from it what is added to the residual. If the formula is None, the vector itself is added."""


class DirectionMemory(Memory):
    """Base class of the memories whose states accumulate an optimizer's directions."""

    weight_decay: float
    clip_norm: float | None

    adds_gradient: ClassVar[bool] = False
    finishes: ClassVar[bool] = True

    @property
    def needs_host(self) -> str:  # type: ignore[override]
        limit = self.clip_norm
        return "" if limit is None else f"with clip_norm {limit!r} computes norms on the host"

    @property
    def needs_optimizer(self) -> str:  # type: ignore[override]
        decay = self.weight_decay
        return f"with weight_decay {decay!r} reads parameters before the exchange" if decay else ""


def directed(gradient: np.ndarray, direction: Direction | None, kernels: Kernels) -> np.ndarray:
    return gradient if direction is None else kernels.directed(gradient, direction)


def scaled(vector: np.ndarray, factor: float, out: np.ndarray | None = None) -> np.ndarray:
    # Convert the factor to the vector's dtype, so that all versions of numpy round alike.
    factor = vector.dtype.type(factor)
    # Vectors on devices have the operator, but not numpy's function.
    product: np.ndarray = vector * factor if out is None else np.multiply(vector, factor, out=out)
    return product


BLOCK = 1 << 14
"""Number of entries whose squares are summed in the vector's own dtype; sums of more entries would
have larger rounding errors."""
SMALL = 1e-30
"""If a sum of squares is below this, many squares may have underflowed in float32, so the sum is
computed again in float64."""


def norm_of(x: np.ndarray) -> float:
    """Return the Euclidean norm of a flat vector. Sums of blocks are added in float64."""
    blocks = [x[at : at + BLOCK] for at in range(0, x.size, BLOCK)]
    squares = sum(float(np.dot(block, block)) for block in blocks)
    if not SMALL < squares < math.inf:
        wide = (block.astype(np.float64) for block in blocks)
        squares = sum(float(np.dot(block, block)) for block in wide)
    return math.sqrt(squares)


class OptimizerMoments(NamedTuple):
    """An optimizer's moments of one tensor: SGD's velocity, Muon's momentum, or Adam's mean and
    second moment. A memory can continue from an optimizer's moments, and an optimizer from a
    memory's.

    arrays : flat arrays by their names in checkpoints, for example "momentum"; may be empty
    steps : number of steps that the optimizer has made so far
    ranks : number of ranks over which the optimizer's gradients are averaged. A memory has the
        gradients of one rank only, so it converts second moments to those of one rank, and back
    """

    arrays: Mapping[str, np.ndarray]
    steps: int
    ranks: int

    def times(self, factor: float) -> OptimizerMoments:
        """Return the moments of gradients that are multiplied by ``factor``."""
        arrays = {
            name: scaled(array, factor**2 if name in ("square", "largest") else factor)
            for name, array in self.arrays.items()
        }
        return self._replace(arrays=arrays)


class DirectionState(ResidualState):
    """The residual of one tensor, to which directions are added instead of gradients.

        residual' = residual + direction,  where sent entries become +0.0

    Subclasses compute the direction (``_direct``). An entry is multiplied by the learning rate of
    the step in which it is sent. This gave better accuracy than the rates of the steps in which
    its parts were added to the residual (docs/results/accuracy-ways.md). Entries that are sent at
    rate 0 would be lost, so a step at rate 0 sends nothing, adds nothing and keeps the residual.
    """

    _options: DirectionMemory
    _vectors: ClassVar[dict[str, str]]
    """Maps the name of each array in a checkpoint to the name of the attribute that holds it."""
    _switches: ClassVar[dict[str, Any]] = {}
    """Settings of the optimizer for which the memory has no options, with their default values."""

    def __init__(self, spec: TensorSpec, options: DirectionMemory, rollback: bool) -> None:
        super().__init__(spec, rollback)
        self.rate = 1.0
        self._options = options
        self._parameter: np.ndarray | None = None
        self._is_held = self._is_climbing = False
        self._tuned: tuple[bool, dict[str, Any]] | None = None
        self._switched = dict(self._switches)
        self._written: list[DoubleBuffer] = []

    def tune(
        self,
        *,
        rate: float,
        parameter: np.ndarray | None = None,
        moments: OptimizerMoments | None = None,
        maximize: bool = False,
        **settings: Any,
    ) -> None:
        """Take the learning rate, the momentum and similar settings from the optimizer.

        rate : learning rate
        parameter : the parameter's value, flat, which weight decay needs
        moments : moments from which the memory continues; None keeps the memory's own
        maximize : the optimizer moves the parameter along the gradient instead of against it
        settings : new values of the memory's options, and of the settings for which the memory has
            no option (``_switches``)
        """
        self.rate, self._parameter, self._is_climbing = rate, parameter, maximize
        # This runs for every tensor in every step, and usually only the rate has changed.
        if (maximize, settings) != self._tuned:
            self._switched = {
                name: settings.get(name, usual) for name, usual in self._switches.items()
            }
            options = {
                name: value for name, value in settings.items() if name not in self._switches
            }
            self._options = replace(self._options, **options)  # type: ignore[type-var]
            beside = maximize, *self._switched.values()
            self.settings = f"{options}{beside if any(beside) else ''}"
            self._tuned = maximize, settings
        if moments is not None:
            self._adopt(moments if self.is_average else moments.times(1 / moments.ranks))

    def _adopt(self, moments: OptimizerMoments) -> None:
        """Replace this memory's moments by an optimizer's, without dropping the residual."""
        raise NotImplementedError

    def moments(self, steps: int, ranks: int) -> OptimizerMoments:
        """Return the moments from which an optimizer can continue without this memory. The tensor
        has made ``steps`` steps, and Horovod averages or sums the gradients of ``ranks`` ranks."""
        found = self._moments(steps, ranks)
        return found if self.is_average else found.times(ranks)

    def _moments(self, steps: int, ranks: int) -> OptimizerMoments:
        """Return the moments of the average gradient."""
        raise NotImplementedError

    def _clipped(self, gradient: np.ndarray, out: np.ndarray | None) -> np.ndarray:
        """Return the gradient, or a copy that is rescaled if the gradient's norm exceeds a limit
        (``MomentumCorrection``). The copy is written to ``out`` if given, which is several times as
        fast as new memory."""
        clip_norm, root = self._options.clip_norm, math.sqrt(self.world_size)
        if clip_norm is None:
            return gradient
        limit = clip_norm * root if self.is_average else clip_norm / root
        norm = norm_of(gradient)
        with np.errstate(invalid="ignore"):  # Inf becomes NaN, which the pass counts
            return gradient if norm <= limit else scaled(gradient, limit / norm, out)

    def _decay(self) -> Decay | None:
        """Return the direction gradient + weight_decay * parameter, for a kernel to compute, or
        None without weight decay. If Horovod sums over N ranks, each rank adds 1 / N of it."""
        decay = self._options.weight_decay / (1 if self.is_average else self.world_size)
        return Decay(self._parameter, decay) if decay and self._parameter is not None else None

    def _need(self, name: str) -> None:
        """Allocate a vector of length 0, which is needed for the first time."""
        if not getattr(self, name).old.size:
            setattr(self, name, self.residual.like())

    def _direct(self, gradient: np.ndarray, kernels: Kernels) -> Directed:
        raise NotImplementedError

    def prepare(self, gradient: np.ndarray, kernels: Kernels, aim: Aim | None = None) -> Prepared:
        v, self._is_held = self.residual, self.rate == 0
        aim = None if self._is_held else aim
        # A clipped gradient may be in ``v.new``: the pass reads each entry before it overwrites it.
        out = v.new if aim is not None and v.can_roll_back else None
        gradient = scaled(gradient, -1) if self._is_climbing else gradient
        gradient = self._clipped(gradient, out)
        gradient, direction = self._direct(gradient, kernels)
        if aim is not None:
            return Addition(gradient, v.old, v.new, aim, direction)
        gradient = directed(gradient, direction, kernels)
        if self._is_held:
            return self._hold(gradient, kernels)
        return Addition(gradient, v.old, v.new)

    def _hold(self, direction: np.ndarray, kernels: Kernels) -> Accumulated:
        """Return zeros as the accumulated vector of a step at learning rate 0, so that nothing is
        selected. ``direction`` is only checked for NaN and Inf."""
        if self.residual.can_roll_back:
            self.residual.new[:] = self.residual.old
        moments = kernels.moments(direction)
        zeros = self.residual.zeros(direction.size, direction.dtype)
        return Accumulated(
            zeros, kernels.moments(zeros) if moments.is_finite else moments, added=zeros
        )

    def update(self, sent: Selection, is_exact: bool, is_taken: bool = False) -> None:
        if not self._is_held:
            super().update(sent, is_exact, is_taken)

    def take_all(self) -> np.ndarray:
        new = self.residual.new
        return np.zeros(new.size, new.dtype) if self._is_held else super().take_all()

    def finish(
        self, reduced: np.ndarray, parameter: np.ndarray, is_compressed: bool, kernels: Kernels
    ) -> np.ndarray:
        """Return the optimizer's direction for a tensor that is never compressed. A compressed
        tensor's reduced gradient is a direction already, and is returned unchanged."""
        return reduced if is_compressed else self._finished(reduced, kernels)

    def _finished(self, reduced: np.ndarray, kernels: Kernels) -> np.ndarray:
        raise NotImplementedError

    def _note_written(self, *vectors: DoubleBuffer) -> None:
        """Record that this step has written new versions of these vectors, for ``commit``."""
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
        for name in self._vectors.values():
            setattr(self, name, getattr(self, name).like(zeros=zeros))

    def arrays(self) -> dict[str, np.ndarray]:
        return {name: getattr(self, vector).old for name, vector in self._vectors.items()}

    def load(self, arrays: dict[str, np.ndarray]) -> None:
        for name, attribute in self._vectors.items():
            vector, given = getattr(self, attribute), arrays[name]
            if vector.old.size != given.size:  # one of them is not allocated yet
                vector = self.residual.like(None if given.size else 0)
                setattr(self, attribute, vector)
            vector.old[:] = given


class MomentumMemory(DirectionMemory):
    momentum: float
    nesterov: bool


class VelocityState(DirectionState):
    """The residual of one tensor, to which the directions of SGD with momentum are added: the
    velocity or, with Nesterov's form, gradient + momentum * velocity. If the momentum is 0 or the
    velocity is not allocated, the gradient itself is added. As in torch, a momentum of 0 leaves
    the velocity as it is."""

    velocity: DoubleBuffer
    _options: MomentumMemory
    _switches: ClassVar[dict[str, Any]] = {"dampening": 0.0}
    _undamped_at = 0
    """Number of the tensor's step whose gradient starts the velocity, and is therefore not
    dampened; -1 if the velocity continues an optimizer's velocity."""

    def _adopt(self, moments: OptimizerMoments) -> None:
        given = moments.arrays.get("momentum")
        # Before Horovod's broadcast, an optimizer without a state gets zero velocity and no steps.
        has_begun = given is not None and (moments.steps > 0 or bool(given.any()))
        self._undamped_at = -1 if has_begun else self.step
        self._begin(given)

    def _begin(self, velocity: np.ndarray | None) -> None:
        raise NotImplementedError

    def _moments(self, steps: int, ranks: int) -> OptimizerMoments:
        velocity = self._velocity_of_sgd() if self._options.momentum else None
        return OptimizerMoments({} if velocity is None else {"momentum": velocity}, steps, ranks)

    def _velocity_of_sgd(self) -> np.ndarray:
        """Return a copy of the velocity, scaled so that SGD can continue without this memory."""
        raise NotImplementedError

    @property
    def _momentum(self) -> float:
        return self._options.momentum

    def _damped(self, gradient: np.ndarray) -> np.ndarray:
        """Return the gradient times 1 - dampening, an option of SGD. As in torch, the first
        gradient of a velocity is returned unchanged."""
        dampening = self._switched["dampening"]
        if not (dampening and self._options.momentum) or self.step == self._undamped_at:
            return gradient
        return scaled(gradient, 1 - dampening)

    def _direct(self, gradient: np.ndarray, kernels: Kernels) -> Directed:
        gradient, u, momentum = self._damped(gradient), self.velocity, self._momentum
        if not (u.old.size and momentum):
            return gradient, None
        self._note_written(u)
        return gradient, Momentum(u.old, u.new, momentum, self._options.nesterov)

    def _finished(self, reduced: np.ndarray, kernels: Kernels) -> np.ndarray:
        result = directed(*self._direct(reduced, kernels), kernels)
        return result.copy() if result is self.velocity.new else result
