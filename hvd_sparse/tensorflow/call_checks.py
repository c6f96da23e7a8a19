"""Refusals of calls that cannot be compressed, while a graph is traced."""

from __future__ import annotations

import tensorflow as tf

from hvd_sparse.collectives.horovod_tensorflow import hvd
from hvd_sparse.configuration import Configuration
from hvd_sparse.errors import RankMismatch, UnknownGradient, UnsupportedReduction
from hvd_sparse.tensorflow.identity import CallSite
from hvd_sparse.types import TensorSpec
from hvd_sparse.untyped import ProcessSet


def check_reduction(site: CallSite, process_set: ProcessSet) -> None:
    """Check how and among whom Horovod is about to reduce.

    Raises
    ------
    UnsupportedReduction : by another operation than sum and average
    RankMismatch : among other ranks than the compressor's
    """
    if site.op is not None and site.op not in (hvd.Average, hvd.Sum):
        raise UnsupportedReduction(
            "Horovod's op is neither hvd.Average nor hvd.Sum, which alone can be restored: use one"
        )
    theirs = site.process_set
    if theirs is not None and theirs.process_set_id != process_set.process_set_id:  # type: ignore[attr-defined]
        raise RankMismatch(
            f"the compressor's process set is {process_set}, Horovod's is {theirs}: give "
            "process_set= to both"
        )


def spec_of_unknown(
    tensor: tf.Tensor, variable: object | None, configuration: Configuration
) -> TensorSpec:
    """Return what stands in for a gradient without a registered variable.

    Compressing it fails, on all ranks.

    Raises
    ------
    UnknownGradient : it would go dense, and so has no carrier to tell the other ranks
    """
    name = getattr(variable, "name", "of unknown name")
    if tensor.shape.is_fully_defined():
        spec = TensorSpec(name, tuple(tensor.shape.as_list()), tensor.dtype.name)
        if configuration.is_sparse(spec.shape, spec.numel):
            return spec
    raise UnknownGradient(
        f"the gradient of the variable {name!r}, of shape {tensor.shape}, has no registered "
        "variable: give the compressor all variables that the tape or optimizer has (outside "
        "of hvd.DistributedGradientTape and hvd.DistributedOptimizer, only shapes that are "
        "unique are known)"
    )
