from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from hvd_sparse.checks import check_number, check_truth, check_whole, is_number, option
from hvd_sparse.errors import InvalidOption
from hvd_sparse.kernels.contract import Kernels
from hvd_sparse.kernels.optimizers import AdamStep, Momentum, NewtonSchulz, matrices_in
from hvd_sparse.memories._directions import Directed, OptimizerMoments, scaled
from hvd_sparse.memories.adam_correction import AdamCorrection, AdamCorrectionState
from hvd_sparse.registry import MEMORIES
from hvd_sparse.types import TensorSpec


@MEMORIES.register("muon_correction")
@dataclass(frozen=True)
class MuonCorrection(AdamCorrection):
    """Compute Muon's updates of matrices on every rank before the selection, and accumulate them.

    Tensors that are not matrices follow the rule of ``AdamCorrection``. For a matrix:

        m' = momentum * m + (1 - momentum) * gradient
        u = m', or (1 - momentum) * gradient + momentum * m' with Nesterov
        v' = v + scale * NS(u)        NS: Newton-Schulz iteration, makes a matrix nearly orthogonal
        select from v'; where an entry is sent v' = 0

    Parameters
    ----------
    momentum : float in [0, 1), for matrices
    nesterov : use Nesterov's form
    ns_steps : number of iterations
    ns_coefficients : coefficients of x, x**3 and x**5 in the iteration
    ns_epsilon : added to the norm by which a matrix is divided before the iteration
    scale : factor of all updates, also of Adam's. None means 1 for Adam's updates, and for a matrix
        0.2 * sqrt(the larger of rows and columns), which suits learning rates of Adam
    beta1, beta2, epsilon : for tensors that are not matrices, as in ``AdamCorrection``
    weight_decay : must be 0: Muon's weight decay is decoupled, and the optimizer applies it
    clip_norm : bounds the norm of each tensor's gradient, as in ``MomentumCorrection``

    Notes
    -----
    The optimizer multiplies the reduced updates by its learning rate, and does not orthogonalize
    them again. After the exchange, Muon would orthogonalize a matrix that has few non-zero entries.

    At density 1 on one rank, the result is that of Muon itself. On several ranks, the result is the
    average of the updates for each rank's gradients, while Muon computes the update for the average
    gradient. Both are equal if the ranks' gradients are equal; otherwise the average of the updates
    is shorter than Muon's update.

    Without ``optimizer=``, every tensor of two or more dimensions is treated as a matrix. With
    ``optimizer=``, the optimizer's parameter groups decide which tensors are matrices; embeddings
    usually are not. A tensor of four dimensions, such as a convolution's kernel, is a matrix with
    one row per output channel. Other tensors of more than two dimensions are stacks of matrices in
    the last two dimensions. Tensors that are never compressed get Muon itself, or Adam.

    State: m and v, float32 (float64 for float64 gradients), and Adam's second moment if the tensor
    is no matrix. With rollback, each vector is kept twice. Cost: three passes, and the iteration of
    all matrices on every rank. For a matrix of r rows and c columns, where r is the smaller
    number, the iteration takes about 2 * ns_steps * (r + 2 * c) * r * r operations.

    Paper: jordan2024muon.  Derived here: the residual accumulates updates instead of gradients.
    """

    momentum: float = option(check_number, 0.95, low=0, high=1, with_low=True)
    nesterov: bool = option(check_truth, True)
    ns_steps: int = option(check_whole, 5, least=1)
    ns_coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315)
    ns_epsilon: float = option(check_number, 1e-7, low=0)
    scale: float | None = option(check_number, None, low=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self.ns_coefficients
        is_list = isinstance(given, (list, tuple))
        if not is_list or len(given) != 3 or not all(map(is_number, given)):
            raise InvalidOption(
                f"ns_coefficients of MuonCorrection is {given!r}: give three numbers, the "
                "coefficients of x, x**3 and x**5"
            )
        object.__setattr__(self, "ns_coefficients", tuple(map(float, given)))
        if self.weight_decay:
            raise InvalidOption(
                f"weight_decay of MuonCorrection is {self.weight_decay!r}: Muon applies weight "
                "decay to the parameter, so give weight_decay to the optimizer, and leave it out "
                "here"
            )

    def create(self, spec: TensorSpec, *, rollback: bool) -> MuonCorrectionState:
        return MuonCorrectionState(spec, self, rollback)


class MuonCorrectionState(AdamCorrectionState):
    """The momentum m and the residual v of a matrix, or m, s and v of ``AdamCorrection`` for other
    tensors. ``mean`` holds m in both cases."""

    _options: MuonCorrection

    def __init__(self, spec: TensorSpec, options: MuonCorrection, rollback: bool) -> None:
        super().__init__(spec, options, rollback)
        self._key, self._shape = spec.key, spec.shape
        self._is_matrix = len(spec.shape) > 1
        self.square = self.residual.like(0)

    def tune(self, **settings: Any) -> None:
        """Take the settings from the optimizer. Settings with a momentum are Muon's, and the tensor
        is then treated as a matrix. Otherwise the tensor gets Adam's updates. Raises InvalidOption
        if the settings are Muon's, and the tensor has fewer than two dimensions."""
        is_matrix = "momentum" in settings
        if is_matrix and len(self._shape) < 2:
            raise InvalidOption(
                f"tensor {self._key!r} has shape {list(self._shape)} and is in a parameter group "
                "of Muon's, which takes matrices: give it to a group of Adam's"
            )
        if is_matrix != self._is_matrix:
            self._is_matrix, self.begun = is_matrix, self.step
            self.mean.old[:] = 0
            self.square = self.residual.like(0)
        super().tune(**settings)

    def _direct(self, gradient: np.ndarray, kernels: Kernels) -> Directed:
        if not self._is_matrix:
            self._need("square")
            return super()._direct(gradient, kernels)
        # Updates do not grow with gradients, so if Horovod sums N updates, each is divided by N.
        share = 1.0 if self.is_average else 1 / self.world_size
        return self._orthogonalized(gradient, kernels, share), None

    def _numbers(self, ranks: int = 1, scale: float = 1.0, is_of_mean: bool = False) -> AdamStep:
        return super()._numbers(ranks, scale * (self._options.scale or 1.0), is_of_mean)

    def _orthogonalized(self, gradient: np.ndarray, kernels: Kernels, share: float) -> np.ndarray:
        """Update a matrix's momentum m, and return Muon's update in a new vector, multiplied by the
        option ``scale`` and by ``share``."""
        options, m = self._options, self.mean
        momentum = Momentum(m.old, m.new, options.momentum, options.nesterov)
        u = kernels.directed(scaled(gradient, 1 - options.momentum), momentum)
        self._note_written(m)
        shape = matrices_in(self._shape)
        step = NewtonSchulz(shape, options.ns_steps, options.ns_coefficients, options.ns_epsilon)
        scale = 0.2 * math.sqrt(max(shape[-2:])) if options.scale is None else options.scale
        return scaled(kernels.orthogonalized(u, step), scale * share)

    def _finished(self, reduced: np.ndarray, kernels: Kernels) -> np.ndarray:
        if self._is_matrix:
            return self._orthogonalized(reduced, kernels, 1.0)
        self._need("square")
        return super()._finished(reduced, kernels)

    def _adopt(self, moments: OptimizerMoments) -> None:
        if not self._is_matrix:
            self._need("square")
            super()._adopt(moments)
            return
        self.begun = self.step - moments.steps
        self.mean.old[:] = moments.arrays.get("momentum", 0)

    def _moments(self, steps: int, ranks: int) -> OptimizerMoments:
        if not self._is_matrix:
            self._need("square")
            return super()._moments(steps, ranks)
        return OptimizerMoments({"momentum": self.mean.old.copy()}, steps - self.begun, ranks)

    def load(self, arrays: dict[str, np.ndarray]) -> None:
        self._is_matrix = not arrays["square"].size and len(self._shape) > 1
        super().load(arrays)
