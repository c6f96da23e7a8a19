"""A handed-over Keras optimizer's moments, copied between its variables and the compressor's
memory.

The memory does the optimizer's work, so the variables are idle while it trains.  They are filled
with the memory's moments where a program asks for them, above all to save them: plain Keras can go
on from there.  What a program writes into them, by loading a state or by clearing it, the memory
takes over in the next step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from hvd_sparse.memories._directions import DirectionState, Moments
from hvd_sparse.step.step import Step
from hvd_sparse.step.tensor_state import TensorState
from hvd_sparse.tensorflow.identity import VariableIndex
from hvd_sparse.tensorflow.keras3 import value_of
from hvd_sparse.untyped import Optimizer, Value
from hvd_sparse.wire.checksum import crc32

LISTS = {
    "momentum": "momentums",
    "mean": "_momentums",
    "square": "_velocities",
    "largest": "_velocity_hats",
}
"""Attributes of Keras's optimizers that hold moments, by the names of memories' arrays."""
OF_LEGACY = "momentum"
"""Name of the only slot that a legacy SGD has."""


class Slots:
    """Carries moments between a memory and an optimizer's variables.

    ``averaged`` returns over how many ranks the optimizer's gradients of a tensor are averaged, and
    the memory's are not.
    """

    def __init__(self, step: Step, index: VariableIndex, averaged: Callable[[int], int]) -> None:
        self._step, self._index, self._averaged = step, index, averaged
        self._lock = threading.Lock()
        self._to_look = set(range(len(index.variables)))
        self._written: dict[tuple[int, str], int] = {}
        self._filled_at: dict[int, int] = {}
        self._offsets: dict[int, int] = {}
        self._steps: int | None = None
        self._stride = 1

    def begin(self, steps: int) -> None:
        """Note how many steps the optimizer has counted; any other count than the steps taken means
        that a program has written to the variables."""
        with self._lock:
            if steps == self._steps:
                return
            stride = 1 if self._steps is None else steps - self._steps
            if stride != self._stride:
                self._look_at_all()
            self._steps, self._stride = steps, stride

    def _look_at_all(self) -> None:
        self._to_look.update(range(len(self._index.variables)))

    def given(self, optimizer: Optimizer, position: int, rate: float) -> Moments | None:
        """Return moments that a program has written into the optimizer; None if there are none.

        ``rate`` is the learning rate of the tensor's current step.
        """
        state, told = self._step.transactions.staged(position), self._steps or 0
        if position not in self._to_look:
            if self._stride != 1:
                _count(state, told)
            return None
        slots = slots_of(optimizer, self._index.variables[position])
        if not rate and "momentum" in slots:
            return None  # Keras's momentum has the rate in it, and waits for one
        self._to_look.discard(position)
        is_first = position not in self._offsets
        own = state.steps - self._offsets.setdefault(position, state.steps - told)
        if not slots or (is_first and state.steps):
            return None  # a state that the compressor was given has the moments of every rank
        arrays, is_ours = {}, True
        for name, slot in slots.items():
            array = np.asarray(value_of(slot)).reshape(-1)
            written = self._written.get((position, name), _sum_of(np.zeros_like(array)))
            self._written[position, name] = _sum_of(array)
            is_ours &= written == self._written[position, name]
            arrays[name] = array.astype(self._step.specs[position].accumulator)
        if is_first:
            is_known = is_ours and not told
        else:  # this rank's compressor wrote it, or rank 0's, and it was broadcast
            is_known = is_ours or (told == own and any(each.any() for each in arrays.values()))
        if is_known:
            if told != own:
                _count(state, told)
            return None
        if "momentum" in arrays:
            arrays["momentum"] /= -rate
        self._offsets[position] = state.steps - told
        return Moments(arrays, told, self._averaged(position))

    def forget(self) -> None:
        """Fill all variables again when asked: the memories' states were replaced."""
        self._filled_at.clear()

    def fill(self, optimizer: Optimizer, rate: float) -> None:
        """Copy this rank's moments from the memory into the optimizer's variables; the next step
        reads them back.  ``rate`` is the learning rate of the last step."""
        with self._lock:
            for position, variable in enumerate(self._index.variables):
                slots = slots_of(optimizer, variable)
                state = self._step.transactions.peek(position, is_open=False) if slots else None
                if state is None or not isinstance(state.memory, DirectionState):
                    continue
                if position in self._to_look or self._filled_at.get(position) == state.steps:
                    continue
                moments = state.memory.moments(state.steps, self._averaged(position))
                for name, slot in slots.items():
                    told = moments.arrays.get(name)
                    if told is None:
                        continue
                    slot = value_of(slot)
                    told = told * -rate if name == "momentum" else told
                    slot.assign(tf.cast(tf.reshape(told, slot.shape), slot.dtype))
                    self._written[position, name] = _sum_of(np.asarray(slot))
                self._filled_at[position] = state.steps
            self._look_at_all()


def slots_of(optimizer: Optimizer, variable: Value) -> dict[str, Value]:
    """Return the variables in which an optimizer keeps moments of a variable, by the names of
    memories' arrays.

    There are none before it is built, and none of a Muon, whose momentum is another in each memory
    of a rank.
    """
    if hasattr(optimizer, "adam_lr_ratio"):  # Muon
        return {}
    if hasattr(optimizer, "_slots"):  # of the legacy optimizers
        slot = optimizer._slots.get(variable._unique_id, {}).get(OF_LEGACY)
        return {} if slot is None else {"momentum": slot}
    if hasattr(optimizer, "_trainable_variables"):  # Keras 3
        at = {id(value_of(v)): i for i, v in enumerate(optimizer._trainable_variables)}
        place = at.get(id(variable))
    else:
        place = getattr(optimizer, "_index_dict", {}).get(variable._unique_id)
    lists = {name: getattr(optimizer, attribute, None) for name, attribute in LISTS.items()}
    if place is None:
        return {}
    return {name: slots[place] for name, slots in lists.items() if slots}


def _count(state: TensorState, told: int) -> None:
    """Let Adam correct its moments' start by the optimizer's count of steps, as Keras does."""
    if hasattr(state.memory, "begun"):
        state.memory.begun = state.steps - told


def _sum_of(array: np.ndarray) -> int:
    return crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


class Showing:
    """Base of Keras optimizers that were handed over, whose variables are filled where they are
    asked for."""

    hvd_sparse_follower: Value

    @property
    def variables(self) -> Value:
        """Return the optimizer's variables, with the moments that its memory has."""
        self.hvd_sparse_follower.show(self)
        return super().variables  # type: ignore[misc]

    def _trackable_children(self, *arguments: Value, **options: Value) -> Value:
        """Fill the variables for ``tf.train.Checkpoint``, which finds them here."""
        self.hvd_sparse_follower.show(self)
        return super()._trackable_children(*arguments, **options)  # type: ignore[misc]
