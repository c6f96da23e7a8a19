"""Find gradients that a program changed after it had given them to Horovod.

Horovod's result replaces the gradient, and with it any change made meanwhile: clipping, or dividing
by a loss scale, without ``optimizer.synchronize()`` first.  A tensor's version reveals most writes.
``GradScaler.unscale_``, ``tensor.data`` and NumPy write without a new version, so a few entries are
compared as well.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import numpy as np
import torch

from hvd_sparse.step.records import StepRun

SAMPLES = 16
"""Entries of each gradient that are compared."""
MOST_NAMES = 3


@dataclass(eq=False)
class Given:
    """A gradient at the time Horovod received it.

    version : the tensor's; None if others may raise it
    place : address of its memory
    watched, sample : a view of some entries, and their values then
    """

    key: str
    parameter: torch.Tensor
    gradient: torch.Tensor
    version: int | None
    place: int
    watched: np.ndarray
    sample: bytes

    def is_changed(self) -> bool:
        now = self.parameter.grad
        if now is None:
            return False  # there is nothing that would be replaced
        if now is not self.gradient or (self.version is not None and now._version != self.version):
            return True
        values = now._values() if now.is_sparse else now
        return values.data_ptr() != self.place or self.watched.tobytes() != self.sample


class Changes:
    """The gradients of a step, up to its first result. All are compared then, because results are
    written from then on, and some gradients share memory."""

    def __init__(self) -> None:
        self.given: dict[int, Given] = {}
        self._owners: dict[int, tuple[weakref.ref[torch.Tensor], bool]] = {}
        self.run: StepRun | None = None

    def give(
        self,
        position: int,
        key: str,
        parameter: torch.Tensor,
        run: StepRun | None,
        memory: np.ndarray | None = None,
    ) -> None:
        """Remember a parameter's gradient, which Horovod gets now.

        run : the step, if known; whatever is left of another one was given up
        memory : the gradient's own, flat, if at hand
        """
        gradient = parameter.grad
        if position in self.given or (
            run is not None and self.run is not None and run is not self.run
        ):
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
        self.given[position] = Given(
            key, parameter, gradient, version, values.data_ptr(), watched, watched.tobytes()
        )

    def take(self) -> tuple[list[str], StepRun | None]:
        """Return the names of changed gradients, and their step; forget all."""
        changed = [given.key for _, given in sorted(self.given.items()) if given.is_changed()]
        run = self.run
        self.forget()
        return changed, run

    def forget(self) -> None:
        """Let go of all gradients."""
        self.given.clear()
        self.run = None


def in_words(keys: list[str]) -> str:
    """Return the error text for changed gradients."""
    names = ", ".join(repr(key) for key in keys[:MOST_NAMES])
    more = f" and {len(keys) - MOST_NAMES} more" if len(keys) > MOST_NAMES else ""
    return (
        f"the gradient of {names}{more} was changed after backward(), when Horovod had it already, "
        "and Horovod's result would "
        "overwrite that: call optimizer.synchronize() first, then clip or unscale, and then call "
        "optimizer.step() within "
        "'with optimizer.skip_synchronize():'"
    )


def _memory_of(values: torch.Tensor) -> np.ndarray:
    """Return a view of the entries in the order of their memory."""
    if not values.is_cpu:
        return np.empty(0)  # comparing entries would wait for the device: its version must do
    plain = values.detach()
    memory: np.ndarray = (
        plain.view(torch.int16) if plain.dtype == torch.bfloat16 else plain
    ).numpy()
    return memory.reshape(-1) if memory.flags.c_contiguous else memory.ravel(order="K")


def _owns_version(gradient: torch.Tensor) -> bool:
    """Return whether writing to other tensors leaves a gradient's version as it is.

    The gradients of parameters that were concatenated are parts of one tensor, and so are those
    that a program keeps in one buffer: accumulating one raises the version of all.  That shows in
    the memory only until it is replaced, so the answer is kept as long as the tensor lives.
    """
    if gradient.is_inference() or gradient._is_view():
        return False
    return bool(gradient.is_sparse or gradient.untyped_storage().nbytes() == gradient.nbytes)
