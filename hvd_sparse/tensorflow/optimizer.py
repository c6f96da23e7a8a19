"""Handed-over Keras optimizers: the compressor's memory does their work, and they apply
the result."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import tensorflow as tf

from hvd_sparse.errors import InvalidOption
from hvd_sparse.memories.adam_correction import AdamCorrection
from hvd_sparse.optimizer_memory import (
    OF_ADAM,
    OF_MUON,
    OF_SGD,
    Handover,
    Rates,
    first_rates,
    refuse_path,
)
from hvd_sparse.step.step import Step
from hvd_sparse.tensorflow.identity import VariableIndex
from hvd_sparse.tensorflow.keras3 import (
    LEGACY_UPDATE,
    derive,
    inner_of,
    is_optimizer_of_keras_3,
    updates_of,
    value_of,
    warn_of_moments,
)
from hvd_sparse.tensorflow.slots import Showing, Slots
from hvd_sparse.untyped import Optimizer, Settings, Value

WRAPPERS = ("horovod._keras", "hvd_sparse.keras.optimizer")
"""Modules whose optimizers call a compressor."""
CLIPPING = ("clipnorm", "clipvalue", "global_clipnorm")
NAMES: dict[type, dict[str, str]] = {
    **{kind: {"momentum": "momentum", "nesterov": "nesterov"} for kind in OF_SGD},
    **{kind: {"beta1": "beta_1", "beta2": "beta_2", "epsilon": "epsilon"} for kind in OF_ADAM},
    **{
        kind: {
            "momentum": "momentum",
            "nesterov": "nesterov",
            "beta1": "adam_beta_1",
            "beta2": "adam_beta_2",
            "epsilon": "epsilon",
        }
        for kind in OF_MUON
    },
}
"""Keras's names of a memory's hyper-parameters."""
OVERWRITTEN = 1e-30
"""Momentum for a step without any in Keras 2, whose velocity is the gradient then.  Memories, as
torch and Keras 3, leave the velocity as it is at a momentum of 0."""


def read_optimizer(optimizer: Optimizer) -> Handover:
    """Return the work that a memory must do for a Keras optimizer; nothing is changed yet.

    Keras's weight decay is decoupled from the gradient, so it stays with the optimizer.  Keras
    multiplies the learning rate into its momentum; here it is applied afterwards, so after a change
    of the rate, old momentum counts at the new rate.
    """
    if not hasattr(optimizer, "get_config"):
        raise InvalidOption(
            f"optimizer is {type(optimizer).__name__}: give a Keras optimizer, or leave it out"
        )
    if type(optimizer).__module__.startswith("horovod") or hasattr(optimizer, "_allreduce_grads"):
        raise InvalidOption(
            "the optimizer is Horovod's already: make the compressor from the optimizer that is "
            "then given to "
            "hvd.DistributedOptimizer (with Keras 3, hvd_sparse.keras.DistributedOptimizer)"
        )
    optimizer = inner_of(optimizer)
    name, memories = type(optimizer).__name__, _memories_of(optimizer)
    if not memories:
        return Handover(name, memories)
    refuse_clipping(optimizer, _with_options_of(optimizer, memories[0]()))
    return Handover(name, memories)


def _memories_of(optimizer: Optimizer) -> tuple[type, ...]:
    update = _update_of(optimizer)
    if update in updates_of("SGD"):
        return OF_SGD
    if update in updates_of("Muon"):
        return OF_MUON
    return OF_ADAM if update in updates_of("Adam", "AdamW", "Nadam") else ()


def _update_of(optimizer: Optimizer) -> Value:
    """Return the method that applies a gradient."""
    # One that was handed over before is asked for what it was.  Updates are compared, not classes:
    # one derived that only adds options is known, one with an update of its own is not.
    base = getattr(optimizer, "hvd_sparse_base", optimizer.__class__)
    return getattr(base, "update_step", getattr(base, LEGACY_UPDATE, None))


def _with_options_of(optimizer: Optimizer, memory: Value) -> Value:
    config = optimizer.get_config()
    numbers = {field: float(config[name]) for field, name in NAMES[type(memory)].items()}
    return replace(memory, **_as_options(numbers))


def _as_options(numbers: Mapping[str, float]) -> Settings:
    return {
        name: bool(number) if name == "nesterov" else number for name, number in numbers.items()
    }


class _Handed(Showing):
    """Base that an optimizer of Keras 2 gets when it is handed over.

    Put before the optimizer's class, of which Horovod derives its own.
    """

    def apply_gradients(self, grads_and_vars: Value, *args: Value, **options: Value) -> Value:
        """Apply the compressor's results."""
        pairs = list(grads_and_vars)
        for gradient, variable in pairs:
            self.hvd_sparse_follower.check(gradient, variable)
        return super().apply_gradients(pairs, *args, **options)  # type: ignore[misc]


class Applying(_Handed):
    """An optimizer that applies the compressor's result times the learning rate."""

    def update_step(self, gradient: Value, variable: Value) -> None:
        """Apply the compressor's result."""
        variable.assign_sub(tf.cast(self.learning_rate, variable.dtype) * gradient)  # type: ignore[attr-defined]


class ApplyingLegacy(_Handed):
    """``Applying`` for the legacy optimizers."""

    @property
    def weights(self) -> Value:
        """Return the same as ``variables``."""
        return self.variables()

    def variables(self) -> Value:  # type: ignore[override]
        """Return the optimizer's variables, with the moments that its memory has."""
        self.hvd_sparse_follower.show(self)
        return super(Showing, self).variables()  # type: ignore[misc]

    def _resource_apply_dense(
        self, gradient: Value, variable: Value, apply_state: Value = None
    ) -> Value:
        rate = self._decayed_lr(variable.dtype.base_dtype)  # type: ignore[attr-defined]
        return variable.assign_sub(rate * gradient, read_value=False)


class ApplyingOfKeras3(Showing):
    """``Applying`` for the optimizers of Keras 3, which stay the same objects."""

    def update_step(self, gradient: Value, variable: Value, learning_rate: Value) -> None:
        """Apply the compressor's result."""
        self.hvd_sparse_follower.check(gradient, variable)
        rate = tf.cast(learning_rate, variable.dtype)
        self.assign_sub(variable, rate * tf.cast(gradient, variable.dtype))  # type: ignore[attr-defined]


class Follower:
    """Source of the settings that the memory needs: above all the learning rate of the step.

    Horovod's Keras optimizer is a copy of the one that was handed over, and has settings of its
    own.

    Attributes
    ----------
    met : positions of the variables whose gradients come through the compressor
    """

    _paths: list[str]
    index: VariableIndex | None = None
    slots: Slots | None = None

    def __init__(self, optimizer: Optimizer, memory: Value) -> None:
        self._optimizer = optimizer = inner_of(optimizer)
        self._memory = memory = _with_options_of(optimizer, memory)
        self._names = NAMES[type(memory)]
        self.met: set[int] = set()
        self._is_eager, self._traced = False, dict[str, float]()
        self._is_nadam = _update_of(optimizer) in updates_of("Nadam")
        self._last_rate = 0.0
        self._settings: Settings = {name: getattr(memory, name) for name in self._names}
        self._settings["rate"] = 0.0
        if not is_optimizer_of_keras_3(optimizer):
            base = getattr(optimizer, "hvd_sparse_base", type(optimizer))
            members = {"hvd_sparse_base": base, "__module__": base.__module__}
            applying = ApplyingLegacy if hasattr(base, LEGACY_UPDATE) else Applying
            optimizer.__class__ = type(base.__name__, (applying, base), members)
        elif not isinstance(optimizer, ApplyingOfKeras3):
            derive(optimizer, ApplyingOfKeras3)
        type(optimizer).hvd_sparse_follower = self
        if type(memory) in OF_MUON:
            warn_of_moments(optimizer, "the compressor, which begins a Muon anew: begin with it")
        self._keeps_momentum = is_optimizer_of_keras_3(optimizer)

    def bind(
        self,
        step: Step,
        index: VariableIndex,
        paths: list[str],
        averaged: Callable[[int], int],
    ) -> None:
        """Serve a compressor's step, now that its variables and their Keras paths are known."""
        self.index, self._paths = index, paths
        self.slots = Slots(step, index, averaged)
        step.settings_of = lambda at: self._settings_of(step.specs[at].shape, at)

    def meet(self, caller: Optimizer) -> None:
        """Take the settings from the optimizer that calls: Horovod's copy, or Keras 3's own."""
        caller = inner_of(caller)
        if getattr(caller, "hvd_sparse_follower", None) is not self:
            raise InvalidOption(
                f"the {type(caller).__name__} that trains is not the optimizer that was given to "
                "the compressor as optimizer=, and would apply its momentum a second time: give "
                "the same object to both"
            )
        refuse_clipping(caller, self._memory)
        if caller is not self._optimizer:
            with tf.init_scope():
                warn_of_moments(
                    self._optimizer,
                    "hvd.DistributedOptimizer, which makes an optimizer of its own, without any: "
                    "write them into its variables behind its first step",
                )
        self._optimizer = caller

    def show(self, optimizer: Optimizer) -> None:
        """Write the memory's moments into the optimizer's variables, for a program that asks for
        them; nothing while a graph is traced."""
        if self.slots is not None and tf.executing_eagerly():
            self.slots.fill(optimizer, self._last_rate)

    def check(self, gradient: Value, variable: Value) -> None:
        """Check a gradient before it is applied, at tracing or at run time.

        Raises
        ------
        InvalidOption : it came through no compressor, so it lacks the memory's momentum
        """
        self._is_eager, self._traced = tf.executing_eagerly(), self._constants()
        if gradient is None:
            return
        name = type(self._optimizer).__name__
        if isinstance(gradient, tf.IndexedSlices):
            raise InvalidOption(
                f"the gradient of {variable.name!r} is sparse, and the compressor does the "
                f"{name}'s work for dense ones: give sparse_as_dense=True to "
                "the DistributedOptimizer or DistributedGradientTape, or leave out optimizer="
            )
        position = None if self.index is None else self.index.lookup(value_of(variable))
        if position not in self.met:
            raise InvalidOption(
                f"the gradient of {variable.name!r} came through no compressor, and the {name}'s "
                "work was handed over to one: give the compressor to the DistributedOptimizer or "
                "DistributedGradientTape that averages it, update variables of this rank alone "
                "by an optimizer of their own, or leave out optimizer="
            )

    def beside(self, scale: tf.Tensor) -> tf.Tensor:
        """Return the loss scale, followed by this step's hyper-parameters: the learning rate at
        which the result will be applied, and the memory's.

        All are read in the graph, because a function called by the graph could see the step counter
        before or after the optimizer advances it, and not alike on all ranks.
        """
        optimizer = self._optimizer
        rate = self._rate()  # first: the legacy optimizers make their variables for it
        numbers = [getattr(optimizer, name) for name in self._names.values()]
        is_hat = not (self._is_nadam or getattr(optimizer, "adaptive_epsilon", False))
        held = scale, rate, *numbers, is_hat, optimizer.iterations
        return tf.stack([tf.cast(tf.convert_to_tensor(n), tf.float64) for n in held])

    def _rate(self) -> Value:
        optimizer = self._optimizer
        if is_optimizer_of_keras_3(optimizer):
            return optimizer.learning_rate
        with tf.init_scope():
            counter = optimizer.iterations  # made now, if it is not there yet
        if hasattr(optimizer, "_decayed_lr"):  # of the legacy optimizers
            return optimizer._decayed_lr(tf.float32)
        rate = optimizer._learning_rate
        is_schedule = isinstance(rate, tf.keras.optimizers.schedules.LearningRateSchedule)
        return rate(counter) if is_schedule else rate

    def _constants(self) -> dict[str, float]:
        """Return the hyper-parameters that are Python's numbers, and no variables."""
        held = {field: getattr(self._optimizer, name) for field, name in self._names.items()}
        return {key: float(value) for key, value in held.items() if isinstance(value, (int, float))}

    def note(self, held: np.ndarray) -> float:
        """Store the hyper-parameters that came with a gradient, the same for all tensors of a step;
        return the loss scale."""
        scale, rate, *numbers, is_hat, steps = held.tolist()
        told = dict(zip(self._names, numbers))
        # Constants count as of when Keras reads them, in update_step: Horovod's reduction is a
        # graph also where Keras runs eagerly, and is not traced again where Keras traces again.
        told |= self._constants() if self._is_eager else self._traced
        if told.get("momentum") == 0 and self._memory.momentum and not self._keeps_momentum:
            told["momentum"] = OVERWRITTEN
        self._settings = {"rate": rate, **_as_options(told)}
        if "epsilon" in told:
            self._settings["is_epsilon_hat"] = bool(is_hat)
        self._last_rate = rate or self._last_rate
        if self.slots is not None:
            self.slots.begin(int(steps))
        return float(scale)

    @property
    def rate(self) -> float:
        """Return the learning rate of this step."""
        return float(self._settings["rate"])

    def factors(self) -> tuple[float, float]:
        """Return by how much the optimizer multiplies results and values to update a variable."""
        return self.rate, self.rate * float(getattr(self._optimizer, "weight_decay", None) or 0.0)

    def _settings_of(self, shape: tuple[int, ...], position: int) -> Settings:
        """Return the settings of this step for a variable, as the memory's ``tune`` takes them."""
        optimizer, told = self._optimizer, dict(self._settings)
        if type(self._memory) in OF_MUON:
            return _settings_of_muon(optimizer, told, shape, self._paths[position])
        if self._is_nadam:
            told["momentum_decay"] = 1.0
        if getattr(optimizer, "amsgrad", False):
            told["amsgrad"] = True
        assert self.slots is not None
        told["moments"] = self.slots.given(optimizer, position, self.rate)
        return {**told, "weight_decay": self._memory.weight_decay}


def _settings_of_muon(
    optimizer: Optimizer, told: Settings, shape: tuple[int, ...], path: str
) -> Settings:
    """Return what a Keras Muon holds for a variable: Muon's settings, or Adam's."""
    of_muon = {name: told.pop(name) for name in ("momentum", "nesterov")}
    if optimizer._should_use_adamw(SimpleNamespace(shape=shape, path=path)):
        return {**told, "scale": float(optimizer.adam_lr_ratio)}
    rms = optimizer.rms_rate
    return {
        "rate": told["rate"],
        **of_muon,
        "ns_steps": int(optimizer.ns_steps),
        "ns_coefficients": (optimizer.muon_a, optimizer.muon_b, optimizer.muon_c),
        # Keras adds it to the norm of sums; means over as many steps are this much smaller.
        "ns_epsilon": 1e-7 * (1 - of_muon["momentum"]),
        "scale": 1.0 if rms is None else math.sqrt(max(shape)) * rms,
    }


def foresee(optimizer: Optimizer, scheduler: Value, steps: int | None) -> Rates:
    """Return the rates of a run of so many steps, or only the first rate where ``steps`` is None.

    Raises
    ------
    InvalidOption : a scheduler is given, or the schedule cannot go so far
    """
    if scheduler is not None:
        raise InvalidOption(
            f"scheduler is {type(scheduler).__name__}: a Keras schedule is found in the optimizer; "
            "leave scheduler out"
        )
    optimizer = inner_of(optimizer)
    held = getattr(optimizer, "_learning_rate", None)
    if held is None:  # of the legacy optimizers
        held = getattr(optimizer, "_hyper", {}).get("learning_rate")
    if callable(held) and hasattr(held, "get_config"):
        if steps is not None:
            return Rates(_path_of(held, steps), is_foreseen=True)
        return first_rates([float(held(0))], "steps= was not given")
    return first_rates([float(tf.convert_to_tensor(optimizer.learning_rate))], None)


def _path_of(schedule: Value, steps: int) -> list[list[float]]:
    @tf.function
    def all_rates() -> tf.Tensor:
        return tf.map_fn(
            lambda step: tf.cast(schedule(step), tf.float32),
            tf.range(steps),
            fn_output_signature=tf.float32,
        )

    try:
        return [[float(rate)] for rate in all_rates().numpy()]
    except Exception as error:
        refuse_path(error, steps)


def calling_optimizer() -> Optimizer:
    """Return the Keras optimizer that calls ``compress``; None with a tape."""
    frame: Value = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") in WRAPPERS and hasattr(
            frame.f_locals.get("self"), "get_config"
        ):
            return frame.f_locals["self"]
        frame = frame.f_back
    return None


def habits_of(optimizer: Optimizer) -> str | None:
    """Return the feature of a Keras optimizer that sparse gradients spoil, as text, or None."""
    with tf.init_scope():  # the configuration holds values, which do not exist inside a graph
        config = inner_of(optimizer).get_config()
    if config.get("momentum"):
        return f"momentum {config['momentum']}"
    if "beta_1" in config:
        return f"beta_1 {config['beta_1']}"
    return (
        "steps that it adapts to the gradients"
        if {"rho", "initial_accumulator_value"} & set(config)
        else None
    )


def refuse_momentum(optimizer: Optimizer) -> None:
    """Raise InvalidOption for an optimizer with momentum, as the memory applies it already."""
    what = habits_of(optimizer)
    if what is not None and what.startswith(("momentum", "beta_1")):
        raise InvalidOption(
            f"the optimizer has {what}, and momentum correction applies momentum already: doubled "
            "momentum diverges; "
            "give the optimizer to Compression.<method>(..., optimizer=optimizer), or use SGD "
            "without momentum"
        )


def refuse_clipping(optimizer: Optimizer, memory: Value) -> None:
    """Raise InvalidOption for an optimizer that clips behind a memory that does its work."""
    if not getattr(memory, "momentum", True):
        return  # gradients arrive
    for option in CLIPPING:
        value = getattr(optimizer, option, None)
        if value is not None:
            is_adaptive = isinstance(memory, AdamCorrection)
            what = f"{type(optimizer).__name__}'s updates" if is_adaptive else "velocities"
            raise InvalidOption(
                f"the optimizer has {option}={value}, and would clip {what}, which arrive instead "
                f"of gradients: leave it out, and clip before with memory={{'id': {memory.id!r}, "
                "'clip_norm': ...}"
            )
