"""Identity: the parameter that a gradient belongs to, as Horovod names none to ``compress``.

The pointer that a hook recorded when the gradient was accumulated is only a hint: memory is reused.
The proof is that the tensor is the parameter's ``.grad``, the very object.  Gradients that Horovod
made itself (zeros for a parameter that took no part) have no hook and are found by asking every
parameter.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence

import torch

from hvd_sparse.errors import InvalidOption, UnknownGradient
from hvd_sparse.frontend.compressor import check_keys
from hvd_sparse.frontend.torch.arrays import dtype_of
from hvd_sparse.types import FLOATS
from hvd_sparse.untyped import Params, Value

FRAMES = 8
"""How far up Horovod's optimizer can be."""


class ParameterIndex:
    """Finds the position of the parameter that a gradient belongs to."""

    def __init__(self, named_parameters: Sequence[tuple[str, torch.Tensor]]) -> None:
        self._named = list(named_parameters)
        self._position_at: dict[int, int] = {}
        self._pointer_of: dict[int, int] = {}
        self._last_hooked: int | None = None
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(_recorder(weakref.ref(self), position))
            for position, (_, parameter) in enumerate(self._named)
            if parameter.requires_grad and parameter.is_leaf
        ]

    def record(self, position: int, gradient: torch.Tensor) -> None:
        """Remember where a parameter's gradient lies, and forget where its last one lay."""
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
        """The position of its parameter; UnknownGradient if it belongs to none, or to more than one
        that could be."""
        hint = self._position_at.get(gradient.data_ptr())
        if hint is not None and self._named[hint][1].grad is gradient:
            return hint
        for position, (_, parameter) in enumerate(self._named):
            if parameter.grad is gradient:
                return position
        return self._find_densified(gradient)

    def _find_densified(self, gradient: torch.Tensor) -> int:
        """``sparse_as_dense`` hands over a dense copy of a sparse gradient.

        Horovod's calling frame has the parameter; where it does not, the last hook's or the only
        possible one is it.
        """
        candidates = [
            position
            for position, (_, parameter) in enumerate(self._named)
            if parameter.grad is not None
            and parameter.grad.is_sparse
            and parameter.shape == gradient.shape
        ]
        named = [
            position
            for position in candidates
            if self._named[position][1] is _parameter_in_frames()
        ]
        if named:
            return named[0]
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
        for hook in self._hooks:
            hook.remove()


def _parameter_in_frames() -> Value:
    """The parameter that Horovod's optimizer is about to reduce, read off its frame; None if it is
    not there."""
    frame: Value = sys._getframe(1)
    for _ in range(FRAMES):
        if frame is None:
            return None
        if frame.f_code.co_name == "_allreduce_grad_async":
            return frame.f_locals.get("p")
        frame = frame.f_back
    return None


def _recorder(index: Callable[[], ParameterIndex | None], position: int) -> Callable[[Value], None]:
    """A hook that does not keep the index, and with it the compressor, alive."""

    def record(parameter: torch.Tensor) -> None:
        owner = index()
        if owner is not None and parameter.grad is not None:
            owner.record(position, parameter.grad)

    return record


def check_named(named_parameters: Params) -> list[tuple[str, torch.Tensor]]:
    """Return the parameters that can have a gradient; InvalidOption for other objects.

    Parameters of other dtypes that need no gradient, for example LoRA's int8 weights, are left out.
    Frozen floats are not, because they may be trained later.
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
