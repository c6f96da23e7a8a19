"""Content that a tensor sends where nothing is selected from it on this rank."""

from __future__ import annotations

from types import ModuleType

import numpy as np

from hvd_sparse.errors import NonFiniteGradient
from hvd_sparse.exchanges.contract import Exchange
from hvd_sparse.exchanges.members import Outgoing
from hvd_sparse.kernels.arrays import as_array
from hvd_sparse.kernels.contract import Kernels
from hvd_sparse.selectors.contract import Context, Found
from hvd_sparse.step.tensor_state import TensorState
from hvd_sparse.step_parts import StepParts
from hvd_sparse.types import Selection, TensorSpec


def send_whole(
    state: TensorState,
    gradient: np.ndarray,
    kernels: Kernels | ModuleType,
    world_size: int,
    *,
    dense: bool,
) -> Outgoing:
    """Return what goes to where it is summed; on a dense step, with what this rank keeps back of
    its part."""
    if not kernels.moments(gradient).is_finite:
        raise not_finite(gradient, state.spec)
    # A copy: Horovod sums it while the program may write to the gradient.
    whole = gradient.copy()
    if not dense:
        return Outgoing(accumulated=whole)
    state.memory.step = state.steps
    state.memory.compensate(gradient[state.part], kernels, world_size)
    whole[state.part] = state.memory.take_all()
    state.note_dense()
    return Outgoing(dense=whole, entries=state.spec.numel)


def send_nothing(
    spec: TensorSpec, parts: StepParts, exchange: Exchange, context: Context, *, dense: bool
) -> Outgoing:
    """Return what stands in for a gradient that is not finite: the carrier says so, and the step
    leaves no trace."""
    nothing = Found(Selection.empty(spec.numel, spec.accumulator), None)
    if not dense and not exchange.settles_later and not exchange.sums_first:
        frame = parts.codec.encode(nothing.selection, context.kernels)
        return Outgoing(frame, found=nothing)
    zeros = np.zeros(spec.numel, spec.accumulator)
    if dense:
        return Outgoing(dense=zeros)
    if exchange.shares_indices and parts.selector.has_shared_indices:
        # The other ranks bring a value for each of these, and a sum wants as many of this one.
        nothing = parts.selector.find(zeros, context)
    return Outgoing(found=nothing, accumulated=zeros)


def not_finite(gradient: np.ndarray, spec: TensorSpec) -> NonFiniteGradient:
    """Return the error for a gradient whose sum with the residual is not finite."""
    bad = int(np.count_nonzero(~np.isfinite(as_array(gradient))))
    what = f"{bad} of {gradient.size} entries of its gradient are NaN or Inf"
    if not bad:
        what = f"gradient + residual leaves the range of {gradient.dtype}"
    error = NonFiniteGradient(
        f"tensor {spec.key!r}: {what}; look for the step's loss, lower the learning rate, or clip "
        "gradients before they are compressed"
    )
    error.is_of_gradient = bad > 0
    return error
