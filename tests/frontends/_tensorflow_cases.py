"""What the TensorFlow workers share: a world of ranks, compressors, and small tools."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

warnings.simplefilter("ignore")  # Horovod's own Keras makes several
import horovod.tensorflow as hvd  # noqa: E402

from hvd_sparse.tensorflow import Compression  # noqa: E402


def begin(ranks: int) -> dict[str, Any]:
    """Start Horovod on this many ranks; the process sets by what they are called in the
    settings."""
    tf.get_logger().setLevel("ERROR")
    tf.config.threading.set_intra_op_parallelism_threads(1)
    if ranks < 3:
        hvd.init()
        return {"all": hvd.global_process_set}
    one_left_out = hvd.ProcessSet(range(ranks - 1))
    hvd.init(process_sets=[one_left_out])
    return {"all": hvd.global_process_set, "one_left_out": one_left_out}


def end() -> None:
    """Leave together: the first rank to go ends Horovod for all."""
    hvd.allreduce(tf.constant(0.0), name="test.end")


def meet() -> None:
    """Wait for all ranks."""
    hvd.allreduce(tf.constant(0.0), name="test.meet")


def summed(array: Any, name: str, process_set: Any = hvd.global_process_set) -> np.ndarray:
    """The sum over the ranks in float64, by Horovod's dense allreduce; the array itself where the
    set is one rank."""
    wide = tf.constant(np.asarray(array, np.float64))
    return np.asarray(hvd.allreduce(wide, op=hvd.Sum, name=f"test.{name}", process_set=process_set))


def digest_of(arrays: Iterable[Any]) -> str:
    """The bits of arrays in few letters."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


def residuals_of(compressor: Any) -> dict[str, np.ndarray]:
    """What this rank keeps back, by tensor and in the order of their names."""
    tensors = compressor.state_dict()["tensors"]
    return {key: tensors[key]["arrays"]["residual"] for key in sorted(tensors)}


def outcome_of(call: Callable[[], Any]) -> dict[str, Any]:
    """What became of a call: the class of its error as the user meets it, and its words.

    TensorFlow turns what is raised while a graph runs into errors of its own, with the class's name
    in the words.
    """
    try:
        call()
    except Exception as error:
        raised, words = type(error).__name__, str(error)[-3000:]
    else:
        raised, words = "nothing", ""
    return {"raised": raised, "words": words}


def variables_of(
    shapes: Iterable[tuple[int, ...]], prefix: str = "tensor", dtype: Any = tf.float32
) -> list[Any]:
    """Variables of ones, with names of their own."""
    return [
        tf.Variable(tf.ones(shape, dtype), name=f"{prefix}{i}") for i, shape in enumerate(shapes)
    ]


def tape_gradients(
    loss: Callable[[], Any], variables: Any, compression: Any, **options: Any
) -> list[Any]:
    """The gradients that Horovod's tape gives."""
    with tf.GradientTape() as tape:
        value = loss()
    return hvd.DistributedGradientTape(tape, compression=compression, **options).gradient(
        value, variables
    )


def linear_loss(variables: Any, coefficients: Any) -> Callable[[], Any]:
    """A loss whose gradients are exactly the coefficients."""
    pairs = [(v, c) for v, c in zip(variables, coefficients) if c is not None]
    return lambda: tf.add_n(
        [tf.cast(tf.reduce_sum(tf.cast(c, v.dtype) * v), tf.float64) for v, c in pairs]
    )


class Books:
    """Whole numbers go in as gradients; all of them must come out, or be kept back.

    Parameters
    ----------
    as_function, options : as a ``tf.function``, and how Horovod's tape reduces
    """

    def __init__(
        self, compressor: Any, variables: list[Any], *, as_function: bool = True, **options: Any
    ) -> None:
        self.compressor, self.variables = compressor, variables
        # an average over 3 is no integer
        self.options = {"op": hvd.Sum if hvd.size() == 3 else hvd.Average, **options}
        self._is_function = as_function
        self.given, self.applied = ([np.zeros(v.shape) for v in variables] for _ in range(2))
        self.trace()

    def trace(self) -> None:
        """Build the step anew, with the options as they are now."""

        def step(gradients: Any) -> Any:
            loss = linear_loss(self.variables, gradients)
            return tape_gradients(loss, self.variables, self.compressor, **self.options)

        self.run = tf.function(step) if self._is_function else step

    def take_step(self, gradients: Iterable[Any]) -> list[np.ndarray]:
        """Reduce arrays, and write them down."""
        gradients = [tf.constant(g, v.dtype) for g, v in zip(gradients, self.variables)]
        reduced = [np.asarray(array) for array in self.run(gradients)]
        times = 1 if self.options["op"] == hvd.Sum else hvd.size()
        for i, (gradient, array) in enumerate(zip(gradients, reduced)):
            self.given[i] += np.asarray(gradient, np.float64)
            self.applied[i] += times * array.astype(np.float64)
        return reduced

    def missing(self, label: str) -> list[np.ndarray]:
        """By variable: given on all ranks, and neither applied nor kept back on any."""
        kept, off = residuals_of(self.compressor), []
        for i, v in enumerate(self.variables):
            mine = self.given[i] - kept.get(v.name, np.zeros(v.shape)).reshape(v.shape)
            off.append(summed(mine, f"{label}.{i}") - self.applied[i])
        return off

    def lost(self, label: str) -> float:
        """The most of any entry that is missing."""
        return max(float(np.abs(array).max()) for array in self.missing(label))


__all__ = ["Compression", "hvd"]
