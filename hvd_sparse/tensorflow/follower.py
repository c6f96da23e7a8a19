"""Keras optimizers given as ``optimizer=``: they apply the updates that the compressor's memory
(the part that keeps the residual) computes.

The memory also keeps the moments: the momentum's velocities, or Adam's averages. When a program
reads the optimizer's variables, for example to save them, the memory's moments are first copied
into the variables. If a program writes moments into the variables, for example to load them, the
memory continues from the written moments.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace

import numpy as np
import tensorflow as tf

from hvd_sparse.collectives.contract import is_elastic
from hvd_sparse.collectives.horovod_tensorflow import hvd
from hvd_sparse.errors import InvalidOption
from hvd_sparse.memories._directions import DirectionState, OptimizerMoments
from hvd_sparse.optimizer_memory import OF_MUON, Rates
from hvd_sparse.step.step import Step
from hvd_sparse.step.tensor_state import TensorState
from hvd_sparse.tensorflow.optimizer import (
    LEGACY_UPDATE,
    NAMES,
    as_options,
    derive,
    divisor_of,
    foresee,
    inner_of,
    is_optimizer_of_keras_3,
    passes_of,
    refuse_clipping,
    update_of,
    updates_of,
    with_options_of,
)
from hvd_sparse.tensorflow.variables import VariableIndex, value_of
from hvd_sparse.types import Optimizer, Pace, Settings, Value
from hvd_sparse.wire.frame import crc32

logger = logging.getLogger("hvd_sparse")

Update = Callable[[], Value]
LISTS = {
    "momentum": "momentums",
    "mean": "_momentums",
    "square": "_velocities",
    "largest": "_velocity_hats",
}
"""Maps the name of a memory's array to Keras's attribute with the same moments."""
OVERWRITTEN = 1e-17
"""Momentum that memories get in place of 0 with Keras 2. In a step with momentum 0, Keras 2
replaces the velocity by the gradient; memories, torch and Keras 3 leave it unchanged. With this
tiny momentum, memories replace it, too: times this number, a velocity is lost in the rounding of a
gradient. With Nesterov, memories divide by the number's square, which must not overflow float32."""


class Showing:
    """Mixin for an optimizer given as ``optimizer=``. When the program reads the optimizer's
    variables, the moments of the compressor's memory are first copied into them."""

    hvd_sparse_follower: Follower

    @property
    def variables(self) -> Value:
        self.hvd_sparse_follower.show(self)
        return super().variables  # type: ignore[misc]

    def _trackable_children(self, *arguments: Value, **options: Value) -> Value:
        # tf.train.Checkpoint finds the moments by this method.
        self.hvd_sparse_follower.show(self)
        return super()._trackable_children(*arguments, **options)  # type: ignore[misc]


class ApplyingOfKeras3(Showing):
    """Mixin for optimizers of Keras 3. ``update_step`` subtracts the learning rate times the
    compressor's result from the variable, unless the variable is never compressed."""

    def update_step(self, gradient: Value, variable: Value, learning_rate: Value) -> None:
        self.hvd_sparse_follower.check(gradient, variable)
        rate = tf.cast(learning_rate, variable.dtype)
        self.hvd_sparse_follower.update(
            variable,
            lambda: self.assign_sub(variable, rate * tf.cast(gradient, variable.dtype)),  # type: ignore[attr-defined]
            partial(super().update_step, gradient, variable, learning_rate),  # type: ignore[misc]
        )


class Applying(Showing):
    """Mixin for optimizers of Keras 2. As in ``ApplyingOfKeras3``, ``update_step`` subtracts the
    learning rate times the compressor's result from a compressed variable."""

    def apply_gradients(self, grads_and_vars: Value, *args: Value, **options: Value) -> Value:
        pairs = list(grads_and_vars)
        for gradient, variable in pairs:
            self.hvd_sparse_follower.check(gradient, variable)
        return super().apply_gradients(pairs, *args, **options)  # type: ignore[misc]

    def update_step(self, gradient: Value, variable: Value) -> None:
        rate = tf.cast(self.learning_rate, variable.dtype)  # type: ignore[attr-defined]
        self.hvd_sparse_follower.update(
            variable,
            lambda: variable.assign_sub(rate * gradient),
            partial(super().update_step, gradient, variable),  # type: ignore[misc]
        )


class ApplyingLegacy(Applying):
    """Mixin for the legacy optimizers of Keras 2. It changes the updates as ``Applying`` does, in
    the methods that legacy optimizers have in place of ``update_step``."""

    @property
    def weights(self) -> Value:
        return self.variables()

    def variables(self) -> Value:  # type: ignore[override]
        self.hvd_sparse_follower.show(self)
        return super(Showing, self).variables()  # type: ignore[misc]

    def _resource_apply_dense(
        self, gradient: Value, variable: Value, apply_state: Value = None
    ) -> Value:
        rate = self._decayed_lr(variable.dtype.base_dtype)  # type: ignore[attr-defined]
        return self.hvd_sparse_follower.update(
            variable,
            lambda: variable.assign_sub(rate * gradient, read_value=False),
            partial(super()._resource_apply_dense, gradient, variable, apply_state),  # type: ignore[misc]
        )


class Follower:
    """Connects an optimizer given as ``optimizer=`` to the compressor's memory: reads each tensor's
    settings from the optimizer, and copies moments (velocities, or Adam's averages) between the
    optimizer and the memory. Positions are those in the compressor's list of variables. ``met`` has
    the positions of the variables whose gradients the compressor receives."""

    _step: Step | None = None
    _index: VariableIndex
    _paths: Sequence[str]
    _size_of_world: Callable[[], int]
    rates: Rates | None = None

    def __init__(self, optimizer: Optimizer, memory: Value) -> None:
        self._optimizer = optimizer = inner_of(optimizer)
        self._name = type(optimizer).__name__
        self._memory = memory = with_options_of(optimizer, memory)
        self._names = NAMES[type(memory)]
        self.met: set[int] = set()
        self._is_eager, self._traced = False, dict[str, float]()
        self._is_nadam = update_of(optimizer) in updates_of("Nadam")
        self._keeps_momentum = is_optimizer_of_keras_3(optimizer)
        self._last_rate = 0.0
        self._settings: Settings = {"rate": 0.0}
        self._settings |= {name: getattr(memory, name) for name in self._names}
        self._lock = threading.Lock()
        self._to_look: set[int] = set()
        self._written: dict[tuple[int, str], int] = {}
        self._filled_at: dict[int, int] = {}
        self._offsets: dict[int, int] = {}
        self._to_empty: set[int] = set()
        self._behind: dict[int, int] = {}
        self._steps: int | None = None
        self._stride = 1  # of the optimizer's counter, from one update to the next
        if not self._keeps_momentum:
            base = getattr(optimizer, "hvd_sparse_base", type(optimizer))
            members = {"hvd_sparse_base": base, "__module__": base.__module__}
            applying = ApplyingLegacy if hasattr(base, LEGACY_UPDATE) else Applying
            optimizer.__class__ = type(base.__name__, (applying, base), members)
        elif not isinstance(optimizer, ApplyingOfKeras3):
            derive(optimizer, ApplyingOfKeras3)
        type(optimizer).hvd_sparse_follower = self
        if type(memory) in OF_MUON:
            _warn_of_moments(
                optimizer,
                "the compressor, which starts Muon without them: give the compressor an "
                "optimizer that has not trained",
            )

    def bind(
        self, step: Step, index: VariableIndex, paths: Sequence[str], size: Callable[[], int]
    ) -> None:
        """Let the memories of ``step`` read the optimizer's settings from this object. ``index``
        has the variables, ``paths`` their paths in the model; ``size`` returns the world size."""
        self._step, self._index, self._paths, self._size_of_world = step, index, paths, size
        self._to_look = set(range(len(index.variables)))
        step.settings_of = self.settings_of
        if (rates := self.rates) is not None:
            step.pace_of = self._pace_of
            if not rates.is_foreseen:  # otherwise the schedule, which no checkpoint has, gives them
                step.references = rates.references

    def meet(self, caller: Optimizer) -> None:
        """From now on, read settings from ``caller``, the optimizer that calls the compressor. With
        Keras 2, this is Horovod's copy of the optimizer. Raises InvalidOption if the caller is
        neither the optimizer passed as ``optimizer=`` nor a copy of it."""
        caller = inner_of(caller)
        if getattr(caller, "hvd_sparse_follower", None) is not self:
            raise InvalidOption(
                f"the {type(caller).__name__} that trains is not the optimizer that was given to "
                "the compressor as optimizer=, and would apply momentum a second time: give the "
                "same object to both"
            )
        refuse_clipping(caller, self._memory)
        if caller is not self._optimizer:
            rates = self.rates
            with tf.init_scope():
                # Only now is it known how many batches Horovod accumulates for an update.
                if rates is not None and rates.is_foreseen and passes_of(caller) > 1:
                    self.rates = foresee(caller, None, len(rates.path))
                    self.rates.is_checked = rates.is_checked
                _warn_of_moments(
                    self._optimizer,
                    "hvd.DistributedOptimizer, which makes a new optimizer without them: write "
                    "them into the new optimizer's variables after its first step",
                )
            # Another copy of an optimizer that has trained starts without moments, too.
            self._to_empty = set(self._offsets)
        self._optimizer = caller

    def check(self, gradient: Value, variable: Value) -> None:
        """Raise InvalidOption if a gradient is sparse, or did not come through the compressor."""
        if gradient is None:
            return
        name = self._name
        if isinstance(gradient, tf.IndexedSlices):
            raise InvalidOption(
                f"the gradient of {variable.name!r} is sparse, and the compressor does the "
                f"{name}'s work for dense ones: give sparse_as_dense=True to "
                "the DistributedOptimizer or DistributedGradientTape, or leave out optimizer="
            )
        if self._step is None or self._index.lookup(value_of(variable)) not in self.met:
            raise InvalidOption(
                f"the gradient of {variable.name!r} came through no compressor, and the {name}'s "
                "work was handed over to one: give the compressor to the DistributedOptimizer or "
                "DistributedGradientTape that averages it, update variables of this rank alone "
                "by an optimizer of their own, or leave out optimizer="
            )
        self._is_eager, self._traced = tf.executing_eagerly(), self._constants()

    def update(self, variable: Value, ours: Update, keras_own: Update) -> Value:
        """Update a variable by one of two functions. ``ours`` applies the update that the memory
        computed. ``keras_own`` is the optimizer's own update, for variables that are not
        compressed, and for an elastic run with one rank, where Horovod calls no compressor."""
        assert self._step is not None  # ``check`` raises before
        if self._index.lookup(value_of(variable)) not in self._step.compressed:
            return keras_own()
        if not is_elastic():
            return ours()
        # In a graph, because the graph is not traced again if ranks leave or join.
        return tf.cond(hvd.size_op() > 1, lambda: (ours(), 0)[1], lambda: (keras_own(), 0)[1])

    def beside(self, scale: tf.Tensor) -> tf.Tensor:
        """Return the optimizer's settings in this step as a float64 vector, which ``note`` reads:
        the loss scale, the learning rate, the memory's hyper-parameters, whether Adam adds epsilon
        before it corrects the bias (epsilon hat), and the step counter. The graph reads these
        values, because Python might read the counter before its increment on some ranks only."""
        optimizer = self._optimizer
        # Horovod divides the results by the number of accumulated batches. Treat this number as a
        # loss scale, so that the memory gets the mean of the batches, and updates keep their size.
        scale = scale * divisor_of(optimizer)
        rate = self._rate()  # first, because this creates the variables of legacy optimizers
        numbers = [getattr(optimizer, name) for name in self._names.values()]
        is_hat = not (self._is_nadam or getattr(optimizer, "adaptive_epsilon", False))
        held = scale, rate, *numbers, is_hat, optimizer.iterations
        return tf.stack([tf.cast(tf.convert_to_tensor(n), tf.float64) for n in held])

    def _rate(self) -> Value:
        optimizer = self._optimizer
        if self._keeps_momentum:  # Keras 3
            return optimizer.learning_rate
        with tf.init_scope():
            counter = optimizer.iterations  # created now if necessary
        if hasattr(optimizer, "_decayed_lr"):  # a legacy optimizer
            return optimizer._decayed_lr(tf.float32)
        rate = optimizer._learning_rate
        is_schedule = isinstance(rate, tf.keras.optimizers.schedules.LearningRateSchedule)
        return rate(counter) if is_schedule else rate

    def _constants(self) -> dict[str, float]:
        held = {field: getattr(self._optimizer, name) for field, name in self._names.items()}
        return {key: float(value) for key, value in held.items() if isinstance(value, (int, float))}

    def note(self, held: np.ndarray) -> float:
        """Store the settings in ``held``, the vector that ``beside`` made, and return the first of
        them, the loss scale."""
        scale, rate, *numbers, is_hat, steps = np.asarray(held).tolist()
        told = dict(zip(self._names, numbers))
        # For constants, use the values that Keras reads in update_step: the graph of Horovod's
        # reduction may have older ones, because it is not traced again when Keras traces again.
        told |= self._constants() if self._is_eager else self._traced
        if told.get("momentum") == 0 and self._memory.momentum and not self._keeps_momentum:
            told["momentum"] = OVERWRITTEN
        settings: Settings = {"rate": rate, **as_options(told)}
        if "epsilon" in told:
            settings["is_epsilon_hat"] = bool(is_hat)
        self._settings = settings  # all at once, because other threads read it
        self._last_rate = rate or self._last_rate
        with self._lock:
            if steps != self._steps:
                # If the stride has changed, the program has written to the variables.
                usual = passes_of(self._optimizer)
                stride = usual if self._steps is None else int(steps) - self._steps
                if stride != self._stride:
                    self._to_look.update(range(len(self._index.variables)))
                self._steps, self._stride = int(steps), stride
        return float(scale)

    def _pace_of(self, position: int) -> Pace:
        assert self._step is not None and self.rates is not None  # ``bind`` sets both before
        transactions = self._step.transactions
        steps = transactions.staged(position).steps
        return self.rates.pace(self._settings["rate"], 0, steps, transactions.most_steps)

    def factors(self) -> tuple[float, float]:
        rate = self._settings["rate"]
        return rate, rate * float(getattr(self._optimizer, "weight_decay", None) or 0.0)

    def settings_of(self, position: int, *, in_step: bool = True) -> Settings:
        """Return the settings of a variable, as arguments of the memory's method ``tune``, and
        moments that the program has written. Without ``in_step``, no moments are read."""
        assert self._step is not None
        optimizer, told = self._optimizer, dict(self._settings)
        if type(self._memory) in OF_MUON:
            shape = self._step.specs[position].shape
            return _settings_of_muon(optimizer, told, shape, self._paths[position])
        if getattr(optimizer, "amsgrad", False):
            told["amsgrad"] = True
        if in_step:
            told["moments"] = self._given(self._step, position)
        return {**told, "weight_decay": self._memory.weight_decay}

    def _given(self, step: Step, position: int) -> OptimizerMoments | None:
        """Return the moments that a program has written into the optimizer's variables since the
        memory last read them. Return None if the program has written none."""
        state, told = step.transactions.staged(position), self._steps or 0
        if position not in self._to_look:
            self._offsets.setdefault(position, state.steps - told)
            self._count(state, position, told)
            return None
        slots = _slots_of(self._optimizer, self._index.variables[position])
        rate = self._settings["rate"]
        if not rate and "momentum" in slots:
            return None  # Keras's momentum includes the rate, so it cannot be read at a rate of 0
        self._to_look.discard(position)
        is_first = position not in self._offsets
        own = state.steps - self._offsets.setdefault(position, state.steps - told)
        if is_first and state.steps:
            self._resume(state, position, told)
            return None
        arrays, is_ours = {}, position not in self._to_empty
        self._to_empty.discard(position)
        if not slots and is_ours:
            return None
        for name, slot in slots.items():
            array = np.asarray(value_of(slot)).reshape(-1)
            is_ours &= self._is_as_written(position, name, array)
            arrays[name] = array.astype(step.specs[position].accumulator)
        if is_first:
            is_known = is_ours and not told
        else:  # the compressor of this rank or of rank 0 wrote them, and they were broadcast
            is_known = is_ours or (told == own and any(each.any() for each in arrays.values()))
        self._behind.pop(position, None)
        if is_known:
            if told != own:
                self._count(state, position, told)
            return None
        if "momentum" in arrays:
            arrays["momentum"] /= -rate
        self._offsets[position] = state.steps - told
        return OptimizerMoments(arrays, told, self._size_of_world())

    def _resume(self, state: TensorState, position: int, told: int) -> None:
        """Continue a tensor from a state that was loaded into the compressor. Keep each rank's
        moments and their number of steps, even if the optimizer counts its steps from 0 again."""
        if hasattr(state.memory, "begun"):
            counted = state.steps - 1 - state.memory.begun + passes_of(self._optimizer)
            # The optimizer is ahead if the last steps before the save did not use this tensor.
            self._behind[position] = max(0, counted - told)
            self._count(state, position, told)

    def _count(self, state: TensorState, position: int, told: int) -> None:
        """Let Adam's memory correct the bias of its moments by ``told``, the optimizer's count of
        steps, as Keras does. The compressor's count may differ, because with a loss scale Keras 2
        also counts steps whose gradients overflow."""
        if hasattr(state.memory, "begun"):
            state.memory.begun = state.steps - told - self._behind.get(position, 0)

    def _is_as_written(self, position: int, name: str, array: np.ndarray) -> bool:
        """Return whether no program has changed a variable with moments, whose value is now
        ``array``. The value is compared with that of the last call, or with that which ``show``
        wrote since then, and at first with zeros, with which Keras creates the variable."""
        written = self._written.get((position, name), _sum_of(np.zeros_like(array)))
        self._written[position, name] = _sum_of(array)
        return written == self._written[position, name]

    def forget(self) -> None:
        """Let the next ``show`` copy all moments, because the memories' states were replaced. The
        new states take precedence over the optimizer's variables."""
        self._filled_at.clear()
        self._offsets.clear()
        self._steps = None  # the optimizer's counter may go back, which no program wrote
        self._to_look.update(range(len(self._index.variables)))

    def close(self) -> None:
        """Write this rank's moments to the optimizer. From now on, the optimizer refuses gradients,
        because it would apply them without momentum. Drop the references to the optimizer and to
        its variables: TensorFlow never frees the optimizer's class, which refers to this object, so
        they would stay in memory."""
        self.show()
        self._step, self._index = None, VariableIndex([])
        del self._optimizer

    def show(self, optimizer: Optimizer = None) -> None:
        """Copy this rank's moments into the optimizer's variables, unless a graph is traced.
        ``optimizer`` is the optimizer or a copy of it."""
        if self._step is None or not tf.executing_eagerly():
            return
        optimizer = self._optimizer if optimizer is None else optimizer
        with self._lock:
            for position, variable in enumerate(self._index.variables):
                slots = _slots_of(optimizer, variable)
                state = self._step.transactions.peek(position, is_open=False) if slots else None
                if state is None or not isinstance(state.memory, DirectionState):
                    continue
                if position in self._to_look or self._filled_at.get(position) == state.steps:
                    continue
                moments = state.memory.moments(state.steps, self._size_of_world()).arrays
                for name in slots.keys() & moments.keys():
                    slot, told = value_of(slots[name]), moments[name]
                    told = told * -self._last_rate if name == "momentum" else told
                    slot.assign(tf.cast(tf.reshape(told, slot.shape), slot.dtype))
                    self._written[position, name] = _sum_of(np.asarray(slot))
                self._filled_at[position] = state.steps
            self._to_look.update(range(len(self._index.variables)))


def _settings_of_muon(
    optimizer: Optimizer, told: Settings, shape: tuple[int, ...], path: str
) -> Settings:
    of_muon = {name: told.pop(name) for name in ("momentum", "nesterov")}
    if optimizer._should_use_adamw(SimpleNamespace(shape=shape, path=path)):
        return {**told, "scale": float(optimizer.adam_lr_ratio)}
    rms = optimizer.rms_rate
    return {
        "rate": told["rate"],
        **of_muon,
        "ns_steps": int(optimizer.ns_steps),
        "ns_coefficients": (optimizer.muon_a, optimizer.muon_b, optimizer.muon_c),
        # Keras adds epsilon to a norm of sums; the memory has means, smaller by this factor.
        "ns_epsilon": 1e-7 * (1 - of_muon["momentum"]),
        "scale": 1.0 if rms is None else math.sqrt(max(shape)) * rms,
    }


def _warn_of_moments(optimizer: Optimizer, loss: str) -> None:
    """Warn that an optimizer's moments are lost, if it has any. ``loss`` is the part of the warning
    that names where they are lost, and a remedy."""
    moments = [*getattr(optimizer, "momentums", ()), *getattr(optimizer, "_momentums", ())]
    for slots in getattr(optimizer, "_slots", {}).values():  # of the legacy optimizers
        moments += slots.values()
    if any(
        bool(tf.reduce_any(tf.not_equal(value_of(moment), 0)))
        for moment in moments
        if moment is not None
    ):
        logger.warning(
            "the %s had moments of %d steps when it was given to %s, or load the state of the "
            "run's compressor (compressor.load), which has those of compressed variables",
            type(optimizer).__name__,
            int(optimizer.iterations),
            loss,
        )


def _slots_of(optimizer: Optimizer, variable: Value) -> dict[str, Value]:
    """Return the optimizer's variables that hold the moments of ``variable``, by the memory's names
    of these moments. The result is empty before the optimizer is built, and for Muon."""
    if hasattr(optimizer, "adam_lr_ratio"):  # Muon
        return {}
    if hasattr(optimizer, "_slots"):  # of the legacy optimizers
        slot = optimizer._slots.get(variable._unique_id, {}).get("momentum")
        return {} if slot is None else {"momentum": slot}
    if hasattr(optimizer, "_trainable_variables"):  # Keras 3
        at = {id(value_of(v)): i for i, v in enumerate(optimizer._trainable_variables)}
        place = at.get(id(variable))
    else:
        place = getattr(optimizer, "_index_dict", {}).get(variable._unique_id)
    if place is None:
        return {}
    lists = {name: getattr(optimizer, attribute, None) for name, attribute in LISTS.items()}
    return {name: slots[place] for name, slots in lists.items() if slots}


def _sum_of(array: np.ndarray) -> int:
    return crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
