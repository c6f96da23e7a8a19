"""Find the parameter and the optimizer of a gradient: Horovod gives ``compress`` neither.

The pointer that a hook recorded when the gradient was accumulated is only a hint: memory is reused.
The proof is that the tensor is the parameter's ``.grad``, the very object.  Gradients that Horovod
made itself (zeros for a parameter that took no part) have no hook and are found by asking every
parameter.

The optimizer is in the calling frames.  If it and the compressor had different process sets, some
ranks would wait for others that never come; the carrier verifies the process set at every step.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from types import FrameType

import torch

from hvd_sparse.collectives.horovod_torch import hvd
from hvd_sparse.errors import (
    InvalidOption,
    RankMismatch,
    UnknownGradient,
    UnsupportedReduction,
)
from hvd_sparse.frontend.naming import check_keys
from hvd_sparse.frontend.torch.arrays import dtype_of
from hvd_sparse.frontend.torch.hooks import remove, weakly
from hvd_sparse.types import FLOATS
from hvd_sparse.untyped import Optimizer, Params, ProcessSet, Value

FRAMES = 8
"""How far up Horovod's optimizer can be."""
OPERATIONS = ("Adasum", "Min", "Max", "Product")


class ParameterIndex:
    """Finds the position of a gradient's parameter."""

    def __init__(self, named_parameters: Sequence[tuple[str, torch.Tensor]]) -> None:
        self._named = list(named_parameters)
        self._position_at: dict[int, int] = {}
        self._pointer_of: dict[int, int] = {}
        self._last_hooked: int | None = None
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(weakly(self.record, position))
            for position, (_, parameter) in enumerate(self._named)
            if parameter.requires_grad and parameter.is_leaf
        ]

    def record(self, position: int, parameter: torch.Tensor) -> None:
        """Remember where a parameter's gradient lies, and forget where its last one lay."""
        gradient = parameter.grad
        if gradient is None:
            return
        self._last_hooked = position
        if gradient.is_sparse:
            return
        pointer = gradient.data_ptr()
        old = self._pointer_of.get(position)
        if old != pointer and old is not None and self._position_at.get(old) == position:
            del self._position_at[old]
        self._pointer_of[position] = pointer
        self._position_at[pointer] = position

    def find(self, gradient: torch.Tensor) -> int:
        """Return the position of its parameter; UnknownGradient if none or several fit."""
        hint = self._position_at.get(gradient.data_ptr())
        if hint is not None and self._named[hint][1].grad is gradient:
            return hint
        for position, (_, parameter) in enumerate(self._named):
            if parameter.grad is gradient:
                return position
        return self._find_densified(gradient)

    def _find_densified(self, gradient: torch.Tensor) -> int:
        """Find the parameter of a dense copy of a sparse gradient (``sparse_as_dense``).

        Horovod's calling frame has it; else it is the last hook's, or the only possible one.
        """
        candidates = [
            position
            for position, (_, parameter) in enumerate(self._named)
            if parameter.grad is not None
            and parameter.grad.is_sparse
            and parameter.shape == gradient.shape
        ]
        called_for = _parameter_in_frames()
        for position in candidates:
            if self._named[position][1] is called_for:
                return position
        if self._last_hooked in candidates:
            return self._last_hooked
        if len(candidates) == 1:
            return candidates[0]
        raise UnknownGradient(
            f"a gradient of shape {list(gradient.shape)} belongs to none of the {len(self._named)} "
            "parameters given to the "
            "compressor"
            + (f" for certain: {len(candidates)} of them could have it" if candidates else "")
            + "; give it the same named_parameters as hvd.DistributedOptimizer"
        )

    def close(self) -> None:
        """Take the hooks away."""
        remove(self._hooks)


def _frames() -> Iterator[FrameType]:
    """Yield the frames from the caller's upwards."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(FRAMES):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def _parameter_in_frames() -> Value:
    """Return the parameter that Horovod's optimizer is about to reduce; None if it is not there."""
    for frame in _frames():
        if frame.f_code.co_name == "_allreduce_grad_async":
            return frame.f_locals.get("p")
    return None


def find_optimizer(process_set: ProcessSet) -> Optimizer:
    """Return Horovod's optimizer that calls, which must fit the compressor; None if none does."""
    for frame in _frames():
        caller = frame.f_locals.get("self")
        if hasattr(caller, "_allreduce_grad_async") and hasattr(caller, "process_set"):
            _compare(caller, process_set)
            return caller
    return None


def _compare(optimizer: Optimizer, process_set: ProcessSet) -> None:
    if optimizer.process_set.process_set_id != process_set.process_set_id:
        raise RankMismatch(
            f"the compressor's process set is {process_set}, the optimizer's is "
            f"{optimizer.process_set}: "
            "give process_set= to both"
        )
    op = getattr(optimizer, "op", hvd.Average)
    if op not in (hvd.Average, hvd.Sum):
        name = next((name for name in OPERATIONS if getattr(hvd, name, None) == op), op)
        raise UnsupportedReduction(
            f"the optimizer's op is hvd.{name}: use hvd.Average or hvd.Sum, which alone can be "
            "restored"
        )


def refuse_parameter(tensor: torch.Tensor) -> None:
    """Raise UnsupportedReduction: Horovod passes parameters, and no gradients, only with Adasum."""
    if isinstance(tensor, torch.nn.Parameter):
        raise UnsupportedReduction(
            "Horovod hands over a parameter, not its gradient: that is op=hvd.Adasum, which has no "
            "sum to restore; use op=hvd.Average or hvd.Sum"
        )


def check_named(named_parameters: Params) -> list[tuple[str, torch.Tensor]]:
    """Return the parameters that can have a gradient; InvalidOption for other objects.

    Frozen floats are among them, because they may be trained later; LoRA's int8 weights, for
    example, are not.
    """
    if isinstance(named_parameters, torch.nn.Module):
        named_parameters = named_parameters.named_parameters()
    named = list(named_parameters)
    for item in named:
        if not isinstance(item, tuple) or len(item) != 2 or not isinstance(item[1], torch.Tensor):
            raise InvalidOption(
                f"the parameters hold {type(item).__name__}, not pairs of name and tensor: give "
                "model.named_parameters()"
            )
    if not named:
        raise InvalidOption(
            "no parameters were given: a generator can be used only once, call "
            "model.named_parameters() again"
        )
    check_keys([name for name, _ in named])
    able = [
        (name, parameter)
        for name, parameter in named
        if parameter.requires_grad or dtype_of(parameter) in FLOATS
    ]
    if not able:
        raise InvalidOption(
            f"none of the {len(named)} parameters can have a gradient: {named[0][0]!r} is "
            f"{dtype_of(named[0][1])}, and the "
            "others are no floats either; give model.named_parameters() of a model that is trained"
        )
    return able
