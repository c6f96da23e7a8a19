"""Keras optimizers that are handed over: the compressor's memory does their work, and they apply
what arrives."""

from __future__ import annotations

import logging
import sys

import tensorflow as tf

from hvd_sparse.errors import InvalidOption
from hvd_sparse.memories.adam_correction import AdamCorrection
from hvd_sparse.memories.momentum_correction import MomentumCorrection
from hvd_sparse.optimizer_memory import Handover
from hvd_sparse.tensorflow.keras3 import (
    Applying as ApplyingOfKeras3,
)
from hvd_sparse.tensorflow.keras3 import (
    derive,
    inner_of,
    is_optimizer_of_keras_3,
    updates_of,
)
from hvd_sparse.untyped import Optimizer, Settings, Value

logger = logging.getLogger("hvd_sparse")

WRAPPERS = ("horovod._keras", "hvd_sparse.keras.optimizer")
"""Modules whose optimizers call a compressor."""


def read_optimizer(optimizer: Optimizer) -> Handover:
    """Return what a memory has to do in a Keras optimizer's place; nothing is changed yet.

    Keras's own weight decay is decoupled from the gradient and so stays with the optimizer.  Keras
    multiplies the rate into its momentum, this does it behind: where the rate changes, momentum
    from before the change is worth the new one.
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
    name = type(optimizer).__name__
    config = optimizer.get_config()
    names = {cls.__name__ for cls in type(optimizer).__mro__}
    base = getattr(optimizer, "hvd_sparse_base", optimizer.__class__)
    update = getattr(base, "update_step", None)
    is_plain = not is_optimizer_of_keras_3(optimizer) or update in updates_of("SGD")
    if "SGD" in names and hasattr(optimizer, "momentum") and is_plain:
        return Handover(
            name, MomentumCorrection(float(config["momentum"]), bool(config["nesterov"]))
        )
    if update not in updates_of("Adam", "AdamW"):
        return Handover(name, None)
    if config.get("amsgrad"):
        raise InvalidOption(
            f"the optimizer has amsgrad, which no memory knows: make the {name} without it"
        )
    for option in ("clipnorm", "clipvalue", "global_clipnorm"):
        if config.get(option) is not None:
            raise InvalidOption(
                f"the optimizer has {option}={config[option]}, and would clip Adam's updates, "
                "which arrive instead of "
                "gradients: leave it out, and clip before with memory={'id': 'adam_correction', "
                "'clip_norm': ...}"
            )
    beta1, beta2, epsilon = (float(config[option]) for option in ("beta_1", "beta_2", "epsilon"))
    return Handover(name, AdamCorrection(beta1, beta2, epsilon))


class Applying:
    """Base that a Keras Adam gets when it is handed over: it applies what arrives, times the rate.

    Put before the optimizer's class, of which Horovod derives its own.
    """

    def build(self, var_list: Value) -> None:
        """Make no moments: the memory has them."""
        tf.keras.optimizers.Optimizer.build(self, var_list)
        self._built = True

    def update_step(self, gradient: Value, variable: Value) -> None:
        """Apply what the compressor made of a gradient."""
        if isinstance(gradient, tf.IndexedSlices):
            raise InvalidOption(
                f"the gradient of {variable.name!r} is sparse, and the compressor does the "
                f"{type(self).__name__}'s work for "
                "dense ones: give Horovod sparse_as_dense=True"
            )
        variable.assign_sub(tf.cast(self.learning_rate, variable.dtype) * gradient)  # type: ignore[attr-defined]


class Follower:
    """Source of the settings that the memory needs: above all the learning rate of the step.

    Horovod's Keras optimizer is a copy of the one that was handed over, and has a rate of its own.

    Attributes
    ----------
    rate : of the step under way, the same for all tensors; it comes along with each of them
    """

    def __init__(self, optimizer: Optimizer, memory: Value) -> None:
        self._optimizer = optimizer = inner_of(optimizer)
        self.rate = 0.0
        is_sgd = isinstance(memory, MomentumCorrection)
        if is_optimizer_of_keras_3(optimizer):
            if not isinstance(optimizer, ApplyingOfKeras3):
                derive(optimizer, ApplyingOfKeras3)
        elif is_sgd:
            take_momentum(optimizer)
        else:
            base = getattr(optimizer, "hvd_sparse_base", type(optimizer))
            members = {"hvd_sparse_base": base, "__module__": base.__module__}
            optimizer.__class__ = type(base.__name__, (Applying, base), members)
        if is_sgd:
            fields: tuple[str, ...] = ("momentum", "nesterov", "weight_decay")
        else:
            fields = ("beta1", "beta2", "epsilon", "weight_decay")
        self._settings = {field: getattr(memory, field) for field in fields}

    def meet(self, caller: Optimizer) -> None:
        """Take the settings from the optimizer that calls: Horovod's copy, or Keras 3's own."""
        caller = inner_of(caller)
        if is_optimizer_of_keras_3(caller) and not isinstance(caller, ApplyingOfKeras3):
            raise InvalidOption(
                f"the {type(caller).__name__} that trains is not the optimizer that was given to "
                "the compressor as optimizer=, and would apply its momentum a second time: give "
                "the same object to both"
            )
        self._optimizer = caller

    def beside(self, scale: tf.Tensor) -> tf.Tensor:
        """Return the scale and, behind it, the rate with which this step's result will be applied.

        Both are read in the graph: a function that the graph calls could see the counter of steps
        before or after the optimizer has moved it on, and not alike on all ranks.
        """
        optimizer = self._optimizer
        if is_optimizer_of_keras_3(optimizer):
            return _behind(scale, optimizer.learning_rate)
        with tf.init_scope():
            counter = optimizer.iterations  # made now, if it is not there yet
        if hasattr(optimizer, "_decayed_lr"):  # of the legacy optimizers
            rate = optimizer._decayed_lr(tf.float32)
        else:
            rate = optimizer._learning_rate
            if isinstance(rate, tf.keras.optimizers.schedules.LearningRateSchedule):
                rate = rate(counter)
        return _behind(scale, rate)

    def settings(self) -> Settings:
        """Return the settings of this step, as the memory's ``tune`` takes them."""
        return {**self._settings, "rate": self.rate}


def _behind(scale: tf.Tensor, rate: Value) -> tf.Tensor:
    return tf.stack([tf.cast(scale, tf.float32), tf.cast(tf.convert_to_tensor(rate), tf.float32)])


def take_momentum(optimizer: Optimizer) -> None:
    """Set a Keras SGD's momentum and Nesterov to zero, and say so."""
    config = optimizer.get_config()
    momentum, nesterov = float(config["momentum"]), bool(config["nesterov"])
    if not momentum:
        return
    optimizer.momentum = 0.0
    optimizer.nesterov = False
    if hasattr(optimizer, "_momentum"):  # the legacy SGD looks here whether to keep slots
        optimizer._momentum = False
    logger.warning(
        "momentum %g%s was taken out of the optimizer; the compressor applies it",
        momentum,
        " (Nesterov)" if nesterov else "",
    )


def calling_optimizer() -> Optimizer:
    """Return the Keras optimizer that calls ``compress``; None where none does.

    Looked for in the frames of Horovod's Keras and ours; with a tape nobody knows what the
    gradients will be given to.
    """
    frame: Value = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") in WRAPPERS and hasattr(
            frame.f_locals.get("self"), "get_config"
        ):
            return frame.f_locals["self"]
        frame = frame.f_back
    return None


def habits_of(optimizer: Optimizer) -> str | None:
    """Return what rare and large entries spoil in a Keras optimizer, in words; None if nothing."""
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
