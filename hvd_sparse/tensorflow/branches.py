"""Branches of a graph: one for every way in which a gradient can travel, of which a step takes
one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from hvd_sparse.collectives.horovod_tensorflow import graph_reduce
from hvd_sparse.tensorflow.host import call_numpy
from hvd_sparse.tensorflow.identity import CallSite
from hvd_sparse.untyped import ProcessSet, Value

SPARSE, EVERYTHING, DENSE, FP16 = range(4)
"""A step's ways: as the method says; all that was kept back along with it; as Horovod does it, as
float32 or float16."""

Build = Callable[[], Value]
"""Builds operations of the graph, and returns what they give."""


class Unbranched:
    """Graph part of a compressor that always compresses: it has a single branch."""

    inputs: Sequence[tf.Tensor] = ()
    """What the function that sends is given besides."""

    def send(self, build: Build, flat: tf.Tensor, moved: Sequence[tf.DType]) -> Value:
        """Return the result of ``GraphBucket.send``: the array to reduce, the tensor's number, and
        the data of the first phase.

        Parameters
        ----------
        flat : the gradient
        moved : dtypes of the first phase's data
        """
        return build()

    def exchange(self, build: Build, dtype: tf.DType) -> tf.Tensor:
        """Return the result of ``GraphBucket.gathered``: 1-D, of this dtype."""
        return build()

    def receive(self, build: Build, flat: tf.Tensor, reduced: tf.Tensor) -> tf.Tensor:
        """Return the reduced gradient, flat.

        Parameters
        ----------
        flat, reduced : the gradient, and Horovod's reduction of the array sent for it
        """
        return build()


@dataclass(frozen=True, eq=False)
class Branched(Unbranched):
    """Graph part with one branch for each way (sparse, dense, fp16); a number selects one in each
    step.

    Collectives of the other branches are not submitted.  All ranks take the same branch.

    Attributes
    ----------
    way : int32, "SPARSE" and the others
    is_sparse, is_half : bool, derived from the way
    is_timed : bool, whether to call ``note_end``
    note_end : called when a result has arrived
    site : the calling site in Horovod, with its reduction
    name : of collectives
    process_set : of collectives
    """

    way: tf.Tensor
    is_sparse: tf.Tensor
    is_half: tf.Tensor
    is_timed: tf.Tensor
    note_end: Callable[[np.ndarray], np.int32]
    site: CallSite
    name: str
    process_set: ProcessSet

    @property
    def inputs(self) -> Sequence[tf.Tensor]:  # type: ignore[override]
        """Return the way, which the function that sends is given besides."""
        return [self.way]

    def send(self, build: Build, flat: tf.Tensor, moved: Sequence[tf.DType]) -> Value:
        """Return the gradient itself on a dense way, otherwise the result of the sparse branch.

        A float16 gradient has an allreduce of its own, and one entry stands for it here, because
        Horovod's operation has a single dtype.
        """

        def aside() -> list[tf.Tensor]:
            wire = tf.cond(self.is_half, lambda: tf.ones([1], flat.dtype), lambda: flat)
            return [wire, tf.constant(-1, tf.int64), *(tf.zeros([0], dtype) for dtype in moved)]

        return tf.cond(self.is_sparse, lambda: list(build()), aside)

    def exchange(self, build: Build, dtype: tf.DType) -> tf.Tensor:
        return tf.cond(self.is_sparse, build, lambda: tf.zeros([0], dtype))

    def receive(self, build: Build, flat: tf.Tensor, reduced: tf.Tensor) -> tf.Tensor:
        def half() -> tf.Tensor:
            site, name = self.site, f"hvd_sparse.{self.name}.fp16"
            summed = graph_reduce(
                tf.cast(flat, tf.float16), site.op, site.scales, name, self.process_set
            )
            return tf.cast(summed, flat.dtype)

        result = tf.cond(
            self.is_sparse, build, lambda: tf.cond(self.is_half, half, lambda: reduced)
        )
        return tf.cond(self.is_timed, lambda: self._noted(result), lambda: result)

    def _noted(self, result: tf.Tensor) -> tf.Tensor:
        """Return the same, once its arrival has been noted."""
        # On all ways alike, so that none looks slower for it.
        noted = call_numpy(self.note_end, [result[:1]], tf.int32, name="hvd_sparse_end")
        with tf.control_dependencies([noted]):
            return tf.identity(result)
