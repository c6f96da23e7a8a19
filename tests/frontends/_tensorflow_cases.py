"""Tools of TensorFlow for cases of both frameworks. ``_torch_cases`` has the same names."""

import sys
import warnings

import _common
import numpy as np
import tensorflow as tf
from _common import run_cases
from _method_cases import digest_of

warnings.simplefilter("ignore")  # Horovod's own Keras makes several
import horovod.tensorflow as hvd  # noqa: E402

from hvd_sparse.tensorflow import Compression, LocalSteps  # noqa: E402

__all__ = ["Compression", "LocalSteps", "digest_of", "hvd"]

COMPRESSES_1D = True


def begin(ranks):
    tf.get_logger().setLevel("ERROR")
    tf.config.threading.set_intra_op_parallelism_threads(1)
    if ranks < 3:
        hvd.init()
        return {"all": hvd.global_process_set}
    one_left_out = hvd.ProcessSet(range(ranks - 1))
    hvd.init(process_sets=[one_left_out])
    return {"all": hvd.global_process_set, "one_left_out": one_left_out}


def run(cases):
    run_cases(cases, hvd.rank(), meet)
    meet()  # leave together: the first rank to go ends Horovod for all


def meet():
    hvd.allreduce(tf.constant(0.0), name="test.meet")


def last_rank():
    return hvd.rank() == hvd.size() - 1


def summed(array, name, process_set=hvd.global_process_set):
    wide = tf.constant(np.asarray(array, np.float64))
    return np.asarray(hvd.allreduce(wide, op=hvd.Sum, name=f"test.{name}", process_set=process_set))


def variables_of(shapes, dtype=tf.float32):
    return [tf.Variable(tf.ones(shape, dtype), name=f"tensor{i}") for i, shape in enumerate(shapes)]


def tape_gradients(loss, variables, compression, **options):
    with tf.GradientTape() as tape:
        value = loss()
    return hvd.DistributedGradientTape(tape, compression=compression, **options).gradient(
        value, variables
    )


def linear_loss(variables, coefficients):
    """Return a function that computes a loss whose gradients are exactly the coefficients."""
    pairs = [(v, c) for v, c in zip(variables, coefficients) if c is not None]
    return lambda: tf.add_n(
        [tf.cast(tf.reduce_sum(tf.cast(c, v.dtype) * v), tf.float64) for v, c in pairs]
    )


def make_variables(shapes, dtypes=None):
    dtypes = dtypes or ["float32"] * len(shapes)
    return {
        key: tf.Variable(tf.ones(shape, dtype), name=key)
        for (key, shape), dtype in zip(shapes.items(), dtypes)
    }


def params_of(variables):
    return list(variables.values())


class Reducer:
    """Reduces gradients, which are passed and returned as arrays by name. If a name is missing, its
    variable has no gradient.

    groups : Horovod's groups, as a number or as lists of variables or of their names
    """

    def __init__(self, compressor, variables, *, as_function=True, **how):
        self.variables = variables
        members = list(variables.values())
        if isinstance(how.get("groups"), list):
            named = [
                [variables[each] if isinstance(each, str) else each for each in group]
                for group in how["groups"]
            ]
            how["groups"] = named

        def step(gradients):
            return tape_gradients(linear_loss(members, gradients), members, compressor, **how)

        self._step = tf.function(step) if as_function else step

    def __call__(self, gradients):
        given = [
            tf.constant(gradients[key], v.dtype) if key in gradients else None
            for key, v in self.variables.items()
        ]
        reduced = zip(self.variables, self._step(given))
        return {key: np.asarray(array) for key, array in reduced if array is not None}

    def forget(self):
        """Do nothing, because a failed step leaves nothing in Horovod's tape."""


class Books(_common.Books):
    fw = sys.modules[__name__]


def step_of(compressor, variables, **how):
    reduce = Reducer(compressor, variables, **{"as_function": False, **how})
    return lambda: reduce({key: tf.random.normal(v.shape) for key, v in variables.items()})


def later_step_of(compressor, variables, ours=None, **how):
    """Make a good step, and return a function that makes the next one. The handshake does not check
    this step, so only the carrier can show a difference."""
    step_of(compressor, variables, **ours or {})()
    return step_of(compressor, variables, **how)


def are_alike(value, name):
    return len({repr(each) for each in hvd.allgather_object(value, name=f"{name}.alike")}) == 1


def check_everything_was_sent(compressor, gradients, entries=None):
    """Check that a compressor has sent all entries of a number of gradients, and nothing dense."""
    stats = compressor.stats()
    compressor.close()
    assert (stats["sparse_steps"], stats["dense_steps"]) == (gradients, 0), stats
    assert stats["entries_sent"] == stats["entries_total"], stats
    assert entries in (None, stats["entries_sent"]), stats


def is_usable(name):
    return float(summed(1.0, f"{name}.usable")) == hvd.size()
