"""Finds the parameter and the optimizer of a gradient that Horovod passes to ``compress``, and
detects whether the program changes the gradient afterwards.

Horovod passes a gradient without its parameter. The parameter is the one whose ``.grad`` is the
same object. Gradients come in nearly the same order in every step, so the search begins at the
parameter that followed in the last step.

If a program clips or unscales a gradient between ``compress`` and ``optimizer.synchronize()``,
Horovod's result overwrites the change, so an error is raised. Most changes increase the tensor's
version counter. ``GradScaler.unscale_``, ``tensor.data`` and NumPy do not, so some entries are
compared with copies, too.
"""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from types import FrameType

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from hvd_sparse.collectives.horovod_torch import hvd
from hvd_sparse.errors import InvalidOption, UnknownGradient, UnsupportedReduction
from hvd_sparse.frontend.compressor import check_call
from hvd_sparse.frontend.naming import check_keys
from hvd_sparse.frontend.torch.applying import is_handed_over
from hvd_sparse.frontend.torch.arrays import dtype_of
from hvd_sparse.frontend.torch.compressor import shorten, squares_of
from hvd_sparse.step.records import StepRun
from hvd_sparse.types import FLOATS, Optimizer, Params, ProcessSet, Value

FRAMES = 10
"""Number of calling frames that are searched for Horovod's optimizer."""
REDUCING = "_allreduce_grad_async"
"""Horovod's method that compresses the gradient of its argument ``p``."""
SAMPLES = 16
"""Approximate number of entries of each gradient that are compared."""
HELD = object()
"""Stands for the handle of a gradient that is not sent yet, so that Horovod raises its error if a
program makes more backward passes than ``backward_passes_per_step``."""
MOST_NAMES = 3


class ParameterIndex:
    def __init__(self, named_parameters: Sequence[tuple[str, torch.Tensor]]) -> None:
        self._parameters = [parameter for _, parameter in named_parameters]
        # For each position, the one that followed it last. At first backwards from the last one.
        self._next = [len(self._parameters) - 1, *range(len(self._parameters) - 1)]
        self._last = 0

    def find(self, gradient: torch.Tensor) -> int:
        """Return the position of a gradient's parameter, or raise UnknownGradient."""
        position: int = self._next[self._last]
        if self._parameters[position].grad is not gradient:
            position = self._next[self._last] = self._search(gradient, position)
        self._last = position
        return position

    def _search(self, gradient: torch.Tensor, guess: int) -> int:
        parameters = self._parameters
        for position in chain(range(guess, -1, -1), range(len(parameters) - 1, guess, -1)):
            if parameters[position].grad is gradient:
                return position
        return self._find_densified(gradient)

    def _find_densified(self, gradient: torch.Tensor) -> int:
        """Return the position of the parameter whose sparse gradient Horovod has made dense, by its
        option ``sparse_as_dense``. Raises UnknownGradient if there is none."""
        reducing = (frame for frame in _frames() if frame.f_code.co_name == REDUCING)
        called_for = next((frame.f_locals.get("p") for frame in reducing), None)
        for position, parameter in enumerate(self._parameters):
            if parameter is called_for and parameter.grad is not None and parameter.grad.is_sparse:
                return position
        raise UnknownGradient(
            f"a gradient of shape {list(gradient.shape)} belongs to none of the "
            f"{len(self._parameters)} parameters given to the compressor; give the compressor the "
            "same named_parameters as hvd.DistributedOptimizer"
        )


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    for _ in range(FRAMES):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def find_optimizer(process_set: ProcessSet) -> Optimizer:
    """Return Horovod's optimizer that is calling the compressor, or None if no optimizer is
    calling. Raises the errors of ``check_call``."""
    callers = (frame.f_locals.get("self") for frame in _frames())
    fits = (c for c in callers if hasattr(c, REDUCING) and hasattr(c, "process_set"))
    optimizer = next(fits, None)
    if optimizer is not None:
        check_call(hvd, optimizer.op, process_set, optimizer.process_set)
    return optimizer


def refuse_parameter(tensor: torch.Tensor) -> None:
    """Raise UnsupportedReduction if Horovod passes a parameter instead of a gradient, as for
    Adasum."""
    if isinstance(tensor, torch.nn.Parameter):
        raise UnsupportedReduction(
            "Horovod passed a parameter instead of its gradient, as it does for op=hvd.Adasum, "
            "which a compressor does not support: use op=hvd.Average or hvd.Sum"
        )


def hold_back(cls: Value, clip: Callable[[Optimizer, list[torch.Tensor]], None]) -> None:
    """Change an optimizer class that Horovod derived, so that ``clip`` receives all gradients of a
    step before the first is sent. Horovod's hooks then send nothing, because the norm of all
    gradients is not known in the backward pass; ``synchronize`` clips and sends all gradients."""
    send, synchronize = cls._allreduce_grad_async, cls.synchronize
    cls._hvd_sparse_is_complete = False

    def send_if_complete(self: Optimizer, parameter: torch.nn.Parameter) -> Value:
        return send(self, parameter) if self._hvd_sparse_is_complete else (HELD, None)

    def refuse(self: Optimizer, _: Value) -> None:
        raise InvalidOption(
            "groups is given to hvd.DistributedOptimizer, which then sends gradients before "
            "clip_grad_norm knows them all: give groups to the compressor instead"
        )

    def clip_and_synchronize(self: Optimizer) -> None:
        if self.process_set.included():
            held = (p for group in self.param_groups for p in group["params"])
            clip(self, [p.grad for p in held if p.requires_grad and p.grad is not None])
        self._handles.update(dict.fromkeys(self._handles, (None, None)))  # Horovod sends these
        self._hvd_sparse_is_complete = True
        try:
            synchronize(self)
        finally:
            self._hvd_sparse_is_complete = False

    cls._allreduce_grad_async, cls._grouped_allreduce_grad_async = send_if_complete, refuse
    cls.synchronize = clip_and_synchronize


def clip_alone(parameters: list[torch.Tensor], bound: float) -> Value:
    """Register a hook that clips the gradients before each step of an optimizer that has any of the
    parameters. It is for ranks on which Horovod calls no compressor: in a world of one rank, or
    outside of the process set. Return the hook's handle."""
    mine = set(parameters)

    def look(optimizer: Optimizer, *_: object) -> None:
        held = {p for group in optimizer.param_groups for p in group["params"]}
        if mine & held and not is_handed_over(optimizer):
            # Not by torch's ``clip_grad_norm_``, which fails at sparse gradients.
            gradients = [p.grad for p in held if p.grad is not None]
            shorten(gradients, math.sqrt(squares_of(gradients)), bound)

    return register_optimizer_step_pre_hook(look)


def check_named(named_parameters: Params) -> list[tuple[str, torch.Tensor]]:
    """Return (name, tensor) of each parameter that can have a gradient, including frozen ones of a
    float dtype. A tied parameter appears once, by its first name. Raises InvalidOption if no
    parameter can have a gradient, or if an item is not a pair of name and tensor."""
    if isinstance(named_parameters, torch.nn.Module):
        named_parameters = named_parameters.named_parameters()
    if not isinstance(named_parameters, Iterable):
        raise InvalidOption(
            f"the parameters are {named_parameters!r}: give model.named_parameters()"
        )
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
    lazy = [name for name, p in named if isinstance(p, torch.nn.parameter.UninitializedParameter)]
    if lazy:
        raise InvalidOption(
            f"parameter {lazy[0]!r} has no shape yet: run one forward pass of the model before you "
            "make the compressor"
        )
    # Tied weights may come under several names, and each tensor has only one gradient.
    first = {id(parameter): name for name, parameter in reversed(named)}
    able = [
        (name, parameter)
        for name, parameter in named
        if first[id(parameter)] == name
        and (parameter.requires_grad or dtype_of(parameter) in FLOATS)
    ]
    if not able:
        raise InvalidOption(
            f"none of the {len(named)} parameters can have a gradient: {named[0][0]!r} is "
            f"{dtype_of(named[0][1])}, and the "
            "others are no floats either; give model.named_parameters() of a model that is trained"
        )
    return able


@dataclass(eq=False)
class Given:
    """A gradient as it was when Horovod received it, to detect later changes.

    version : the gradient's version counter; None if other tensors share the counter
    place : address of the gradient's memory
    watched, sample : a view of some of its entries, and the bytes that these entries had
    """

    gradient: torch.Tensor
    version: int | None
    place: int
    watched: np.ndarray
    sample: bytes

    def is_changed(self, now: torch.Tensor | None) -> bool:
        """Return whether ``now``, the parameter's present ``.grad``, differs from this gradient."""
        if now is None:
            return False  # the result overwrites nothing
        if now is not self.gradient or (self.version is not None and now._version != self.version):
            return True
        values = now._values() if now.is_sparse else now
        return values.data_ptr() != self.place or self.watched.tobytes() != self.sample


class Changes:
    """The gradients that Horovod has received in a step. All of them are checked for changes before
    the step's first result is written, because a result may be written to memory that other
    gradients share."""

    def __init__(self, named: Sequence[tuple[str, torch.Tensor]]) -> None:
        self._named = named
        self.given: dict[int, Given] = {}
        self._owners: dict[int, tuple[weakref.ref[torch.Tensor], bool]] = {}
        self.run: StepRun | None = None

    def give(self, position: int, run: StepRun | None, memory: np.ndarray | None = None) -> None:
        """Record the gradient of a parameter before Horovod receives it. ``run`` is the gradient's
        step, or None if it is not in a counted step. If a new step begins, first forget the
        gradients of the step before, which was abandoned. ``memory`` is a flat view of the
        gradient's memory, if the caller has one."""
        gradient = self._named[position][1].grad
        is_of_another_run = None not in (run, self.run) and run is not self.run
        if position in self.given or is_of_another_run:
            self.forget()
        if gradient is None:
            return
        self.run = self.run if run is None else run
        values = gradient._values() if gradient.is_sparse else gradient
        if memory is None:
            memory = _memory_of(values)
        known = self._owners.get(position)
        if known is None or known[0]() is not gradient:
            known = self._owners[position] = (weakref.ref(gradient), _owns_version(gradient))
        version = gradient._version if known[1] else None
        watched = memory[:: max(1, memory.size // SAMPLES)]
        place, sample = values.data_ptr(), watched.tobytes()
        self.given[position] = Given(gradient, version, place, watched, sample)

    def take(self) -> tuple[list[str], StepRun | None]:
        """Return the names of the gradients that have changed, and the step of all gradients (None
        outside of counted steps). Then forget all gradients."""
        named, run = self._named, self.run
        changed = [i for i, given in self.given.items() if given.is_changed(named[i][1].grad)]
        self.forget()
        return [named[i][0] for i in sorted(changed)], run

    def forget(self) -> None:
        self.given.clear()
        self.run = None


def in_words(keys: list[str]) -> str:
    names = ", ".join(repr(key) for key in keys[:MOST_NAMES])
    more = f" and {len(keys) - MOST_NAMES} more" if len(keys) > MOST_NAMES else ""
    return (
        f"the gradient of {names}{more} was changed after backward(), when Horovod had it already, "
        "and Horovod's result would overwrite that: call optimizer.synchronize() first, then clip "
        "or unscale, and then call optimizer.step() within 'with optimizer.skip_synchronize():'"
    )


def _memory_of(values: torch.Tensor) -> np.ndarray:
    """Return the entries as a flat array in the order of memory; empty for a tensor on a device."""
    if not values.is_cpu:
        return np.empty(0)  # reading entries would wait for the device, so only versions count
    plain = values.detach()
    memory: np.ndarray = (
        plain.view(torch.int16) if values.dtype == torch.bfloat16 else plain
    ).numpy()
    return memory.reshape(-1) if memory.flags.c_contiguous else memory.ravel(order="K")


def _owns_version(gradient: torch.Tensor) -> bool:
    """Return whether the gradient has its own version counter, which changes in place increase.
    Views of one buffer share a counter."""
    if gradient.is_inference() or gradient._is_view():
        return False
    return bool(gradient.is_sparse or gradient.untyped_storage().nbytes() == gradient.nbytes)
