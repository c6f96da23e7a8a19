"""Horovod's tape, for Keras 3 variables."""

from __future__ import annotations

import tensorflow as tf

from hvd_sparse.collectives.horovod_tensorflow import hvd
from hvd_sparse.tensorflow.keras3 import value_of, values_of
from hvd_sparse.untyped import Option, Value


def DistributedGradientTape(gradtape: tf.GradientTape, **options: Option) -> Value:
    """Return ``horovod.tensorflow.DistributedGradientTape``, extended to Keras 3 variables.

    Horovod's own calls ``ref()`` on its sources, which Keras 3's variables do not have.

    Parameters
    ----------
    gradtape : the tape to wrap
    options : Horovod's: ``compression``, ``op``, ``groups``, ``process_set`` and the others
    """
    if isinstance(options.get("groups"), list):
        options["groups"] = values_of(options["groups"])
    tape = hvd.DistributedGradientTape(gradtape, **options)
    gradient, register = tape.gradient, tape.register_local_source

    def gradient_of_values(target: Value, sources: Value, *others: Value, **named: Value) -> Value:
        return gradient(target, values_of(sources), *others, **named)

    # On the object, as Horovod's class calls the next one by ``super(self.__class__, self)``.
    tape.gradient = gradient_of_values
    tape.register_local_source = lambda source: register(value_of(source))
    return tape
