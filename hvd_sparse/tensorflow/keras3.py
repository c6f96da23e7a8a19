"""Keras 3, which Horovod does not support: its variables, its optimizers, and how to distinguish
them from Keras 2's.  Keras itself is not imported here, because either version may be in use."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable

import tensorflow as tf

from hvd_sparse.errors import UnsupportedInput
from hvd_sparse.untyped import Optimizer, Params, Value

logger = logging.getLogger("hvd_sparse")

WAY_OUT = (
    "Horovod's wrappers do not know Keras 3: its Keras optimizer trains without averaging "
    "anything, in silence. Wrap the optimizer by "
    "hvd_sparse.keras.DistributedOptimizer(optimizer, compression=...), or install tf-keras and "
    "set TF_USE_LEGACY_KERAS=1 in the environment before TensorFlow is imported"
)


def value_of(variable: Value) -> Value:
    """Return the ``tf.Variable`` in a Keras 3 variable; all else as it is."""
    return variable.value if _is_of_keras(variable) and hasattr(variable, "value") else variable


def prefix_of(params: Params) -> str:
    """Return the prefix that a Keras 3 model's variables may have: the model's own name.

    They have it if the first batch built the model, but not if the model was loaded.
    """
    return f"{params.name}/" if _is_of_keras(params) and hasattr(params, "name") else ""


def _is_of_keras(thing: Value) -> bool:
    return any(cls.__module__.split(".")[0] == "keras" for cls in type(thing).__mro__)


def values_of(variables: Iterable[Value]) -> list[Value]:
    """Return the ``tf.Variable`` of each, also in lists of lists."""
    return [values_of(v) if isinstance(v, (list, tuple)) else value_of(v) for v in variables]


def is_keras_3() -> bool:
    """Return whether ``tf.keras`` is Keras 3 in this process."""
    version = getattr(tf.keras, "__version__", "2")
    return int(str(version).split(".")[0]) >= 3


def is_optimizer_of_keras_3(optimizer: Optimizer) -> bool:
    """Tell whether an optimizer is one of Keras 3's, which alone can be applied without state."""
    return hasattr(type(optimizer), "stateless_apply")


def inner_of(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer in a Keras 3 ``LossScaleOptimizer``; any other as it is."""
    if not is_optimizer_of_keras_3(optimizer):
        return optimizer
    return getattr(optimizer, "inner_optimizer", optimizer)


def refuse_horovods_wrapper(caller: Optimizer) -> None:
    """Raise UnsupportedInput if the calling optimizer is Horovod's wrapper of a Keras 3 one."""
    if is_optimizer_of_keras_3(caller) and type(caller).__module__ == "horovod._keras":
        raise UnsupportedInput(f"{type(caller).__name__} is an optimizer of Keras 3. {WAY_OUT}")


LEGACY_UPDATE = "_resource_apply_dense"
"""Method of a legacy SGD that does what ``update_step`` does in the others."""


def updates_of(*names: str) -> list[Value]:
    """Return the update rules of these optimizers, in all loaded versions of Keras; of the legacy
    ones only SGD, because no memory supports the others."""
    loaded = [tf.keras.optimizers, getattr(sys.modules.get("keras"), "optimizers", None)]
    updates = [
        getattr(optimizers, name).update_step
        for optimizers in loaded
        for name in names
        if hasattr(optimizers, name)
    ]
    legacy = getattr(getattr(tf.keras.optimizers, "legacy", None), "SGD", None)
    if "SGD" in names and hasattr(legacy, LEGACY_UPDATE):
        updates.append(getattr(legacy, LEGACY_UPDATE))
    return updates


def derive(optimizer: Optimizer, base: type, **members: Value) -> None:
    """Give a Keras 3 optimizer a class derived from its own, with ``base`` first.

    It stays the same object.  When Keras serialises it, it reports its original class, so any
    program can load it.
    """
    plain = optimizer.__class__
    told = {"__class__": property(lambda self: plain), "__module__": plain.__module__}
    derived = type(plain.__name__, (base, type(optimizer)), {**told, **members})
    object.__dict__["__class__"].__set__(optimizer, derived)


def warn_of_moments(optimizer: Optimizer, loss: str) -> None:
    """Warn that a handed-over optimizer's moments are lost, if it has any; ``loss`` says where, and
    the remedy."""
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
            "run's compressor (compressor.load)",
            type(optimizer).__name__,
            int(optimizer.iterations),
            loss,
        )
