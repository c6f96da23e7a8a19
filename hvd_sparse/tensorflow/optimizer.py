"""Reads Keras's optimizers of all versions, and finds the memories that can compute their updates.
Keras is not imported, because Keras 2 or Keras 3 may be in use."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

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
    foreseen,
)
from hvd_sparse.tensorflow.variables import callers
from hvd_sparse.types import Optimizer, Settings, Value

WRAPPERS = ("horovod._keras", "hvd_sparse.keras.optimizer")
"""Modules with wrappers of Keras optimizers that call a compressor."""
CLIPPING = ("clipnorm", "clipvalue", "global_clipnorm")
SGD = {"momentum": "momentum", "nesterov": "nesterov"}
ADAM = {"beta1": "beta_1", "beta2": "beta_2", "epsilon": "epsilon"}
MUON = {**SGD, **ADAM, "beta1": "adam_beta_1", "beta2": "adam_beta_2"}
NAMES: dict[type, dict[str, str]] = {
    **dict.fromkeys(OF_SGD, SGD),
    **dict.fromkeys(OF_ADAM, ADAM),
    **dict.fromkeys(OF_MUON, MUON),
}
"""Maps a memory's class to Keras's names of the memory's hyper-parameters."""
LEGACY_UPDATE = "_resource_apply_dense"
"""Method of the legacy SGD that corresponds to ``update_step`` of other optimizers."""
WAY_OUT = (
    "Horovod's wrappers do not support Keras 3: a wrapped optimizer trains without averaging "
    "gradients, and without an error. Wrap the optimizer by "
    "hvd_sparse.keras.DistributedOptimizer(optimizer, compression=...), or install tf-keras and "
    "set TF_USE_LEGACY_KERAS=1 in the environment before TensorFlow is imported"
)


def is_keras_3() -> bool:
    return int(str(getattr(tf.keras, "__version__", "2")).split(".")[0]) >= 3


def is_optimizer_of_keras_3(optimizer: Optimizer) -> bool:
    return hasattr(type(optimizer), "stateless_apply")


def inner_of(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer inside of a ``LossScaleOptimizer``, or ``optimizer`` itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def common_variables(optimizer: Optimizer) -> list[Value]:
    """Return the variables of a Keras 3 optimizer that are equal on all ranks: all but the sums of
    accumulated gradients, because each rank accumulates gradients of its own batches."""
    own = {id(each) for each in getattr(inner_of(optimizer), "_accumulated_gradients", ())}
    return [variable for variable in optimizer.variables if id(variable) not in own]


def updates_of(*names: str) -> list[Value]:
    """Return the methods with which the named optimizers compute updates, in all loaded versions of
    Keras. An optimizer with one of these methods is recognized, even if its class is a subclass."""
    loaded = [tf.keras.optimizers, getattr(sys.modules.get("keras"), "optimizers", None)]
    updates = [
        getattr(getattr(optimizers, name, None), "update_step", None)
        for optimizers in loaded
        for name in names
    ]
    legacy = getattr(getattr(tf.keras.optimizers, "legacy", None), "SGD", None)
    if "SGD" in names:
        updates.append(getattr(legacy, LEGACY_UPDATE, None))
    return [update for update in updates if update is not None]


def update_of(optimizer: Optimizer) -> Value:
    # Compare updates: a subclass that only adds options is supported, one with its own update is
    # not. ``hvd_sparse_base`` is the original class of an optimizer that a compressor had before.
    base = getattr(optimizer, "hvd_sparse_base", optimizer.__class__)
    return getattr(base, "update_step", getattr(base, LEGACY_UPDATE, None))


def derive(optimizer: Optimizer, base: type, **members: Value) -> None:
    """Change the class of a Keras 3 optimizer to a new subclass of ``base`` and of its original
    class, with further ``members``. Keras still saves the optimizer as one of the original
    class."""
    plain = optimizer.__class__
    told = {"__class__": property(lambda self: plain), "__module__": plain.__module__}
    derived = type(plain.__name__, (base, type(optimizer)), {**told, **members})
    object.__dict__["__class__"].__set__(optimizer, derived)


def read_optimizer(optimizer: Optimizer) -> Handover:
    """Return a Keras optimizer's name, and the classes of memories that can compute its updates
    (none if it is not supported). The optimizer still applies decoupled weight decay itself. If the
    learning rate changes, the memory's updates differ from Keras's, because Keras's momentum
    includes the rates of old steps."""
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
    kinds = {("SGD",): OF_SGD, ("Muon",): OF_MUON, ("Adam", "AdamW", "Nadam"): OF_ADAM}
    update = update_of(optimizer)
    memories = next((kinds[names] for names in kinds if update in updates_of(*names)), ())
    if memories:
        refuse_clipping(optimizer, with_options_of(optimizer, memories[0]()))
    return Handover(type(optimizer).__name__, memories)


def with_options_of(optimizer: Optimizer, memory: Value) -> Value:
    config = optimizer.get_config()
    numbers = {field: float(config[name]) for field, name in NAMES[type(memory)].items()}
    return replace(memory, **as_options(numbers))


def as_options(numbers: Mapping[str, float]) -> Settings:
    return {
        name: bool(number) if name == "nesterov" else number for name, number in numbers.items()
    }


def foresee(optimizer: Optimizer, scheduler: Value, steps: int | None) -> Rates:
    if scheduler is not None:
        raise InvalidOption(
            f"scheduler is {type(scheduler).__name__}: a Keras schedule is found in the optimizer; "
            "leave scheduler out"
        )
    optimizer = inner_of(optimizer)
    held = getattr(optimizer, "_learning_rate", None)
    if held is None:  # a legacy optimizer
        held = getattr(optimizer, "_hyper", {}).get("learning_rate")
    if callable(held) and hasattr(held, "get_config"):
        if steps is not None:
            return foreseen(partial(_path_of, held, stride_of(optimizer)), steps)
        return first_rates([float(held(0))], "steps= was not given")
    return first_rates([float(tf.convert_to_tensor(optimizer.learning_rate))], None)


def _path_of(schedule: Value, stride: int, steps: int) -> list[list[float]]:
    @tf.function
    def all_rates() -> tf.Tensor:
        def rate(batch: tf.Tensor) -> tf.Tensor:
            return tf.cast(schedule(batch), tf.float32)

        updates = tf.range(stride - 1, steps * stride, stride)  # each in the last of its batches
        return tf.map_fn(rate, updates, fn_output_signature=tf.float32)

    return [[float(rate)] for rate in all_rates().numpy()]


def calling_optimizer() -> Optimizer:
    """Return the Keras optimizer that calls ``compress``, or that Horovod is wrapping now. Return
    None if a gradient tape calls."""
    frames = (frame.f_locals for frame in callers() if frame.f_globals.get("__name__") in WRAPPERS)
    found = (local.get("self", local.get("optimizer")) for local in frames)
    return next((caller for caller in found if hasattr(caller, "get_config")), None)


def passes_of(optimizer: Optimizer) -> int:
    """Return ``backward_passes_per_step``: Horovod's optimizer accumulates this number of backward
    passes for one update, and counts each as a step."""
    return int(getattr(getattr(optimizer, "_agg_helper", None), "backward_passes_per_step", 1))


def stride_of(optimizer: Optimizer) -> int:
    """Return the number of batches for which the optimizer makes one update. Learning-rate
    schedules count batches, so they advance by this number from one update to the next."""
    accumulated = getattr(inner_of(optimizer), "gradient_accumulation_steps", None)  # Keras 3
    return int(accumulated or passes_of(optimizer))


def divisor_of(optimizer: Optimizer) -> int:
    """Return the number by which Horovod's optimizer divides the reduced gradients: the number of
    accumulated batches with ``average_aggregated_gradients=True``, otherwise 1."""
    helper = getattr(optimizer, "_agg_helper", None)
    is_averaging = getattr(helper, "average_aggregated_gradients", False)
    return passes_of(optimizer) if is_averaging else 1


def refuse_clipping(optimizer: Optimizer, memory: Value) -> None:
    """Raise InvalidOption if the optimizer would clip the updates that the memory computes. Keras's
    options of clipping are meant for gradients."""
    if not getattr(memory, "momentum", True):
        return  # the results are gradients
    for option in CLIPPING:
        value = getattr(optimizer, option, None)
        if value is not None:
            is_adaptive = isinstance(memory, AdamCorrection)
            what = f"{type(optimizer).__name__}'s updates" if is_adaptive else "velocities"
            raise InvalidOption(
                f"the optimizer has {option}={value}, and would clip {what}, which it gets "
                f"instead of gradients: leave {option} out, and clip in the memory, by "
                f"memory={{'id': {memory.id!r}, 'clip_norm': ...}}"
            )
