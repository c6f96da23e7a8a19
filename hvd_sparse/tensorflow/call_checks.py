"""Refusals of calls that cannot be compressed, while a graph is traced."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import tensorflow as tf

from hvd_sparse.collectives.horovod_tensorflow import hvd
from hvd_sparse.configuration import Configuration
from hvd_sparse.errors import (
    InvalidOption,
    RankMismatch,
    UnknownGradient,
    UnsupportedInput,
    UnsupportedReduction,
)
from hvd_sparse.tensorflow.identity import CallSite
from hvd_sparse.types import TensorSpec
from hvd_sparse.untyped import ProcessSet, Value

_FUNCTIONS = "tensorflow.python.eager.polymorphic_function.polymorphic_function"


def check_reduction(site: CallSite, process_set: ProcessSet) -> None:
    """Check Horovod's operation and its ranks.

    Raises
    ------
    UnsupportedReduction : the operation is neither sum nor average
    RankMismatch : the ranks are not the compressor's
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


def refuse_xla() -> None:
    """Raise UnsupportedInput where the graph that is being traced will be compiled by XLA.

    TensorFlow would say so at the first step, in words about operations that no user has written.
    """
    frame: Value = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == _FUNCTIONS and getattr(
            frame.f_locals.get("self"), "_jit_compile", None
        ):
            raise UnsupportedInput(
                "the training step is to be compiled by XLA, which knows no collectives of "
                "Horovod: say model.compile(..., jit_compile=False), as Keras 3 turns it on by "
                "itself where there is a GPU, or leave jit_compile=True out of tf.function"
            )
        frame = frame.f_back


def spec_of_unknown(
    tensor: tf.Tensor, variable: object | None, configuration: Configuration
) -> TensorSpec:
    """Return a placeholder for a gradient without a registered variable.

    Compressing it fails, on all ranks.

    Raises
    ------
    UnknownGradient : it would go dense, so it has no carrier to inform the other ranks
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


def check_names(names: Sequence[str]) -> None:
    """Raise InvalidOption where Horovod, which groups by name, would drop a gradient."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidOption(
            f"two variables are called {twice[0]!r}, and Horovod tells those of groups apart by "
            "name: give the layers names of their own, or groups= a number"
        )
