"""The errors of hvd_sparse. All of them derive from ``SparseError``.

A message names the tensor (if the error concerns one) and the wrong value, and says how to fix it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING


class SparseError(Exception):
    """Base class of all errors of hvd_sparse."""

    # AutoGraph replaces an error by a StagingError, unless its class has Exception's constructor.
    # Without this line, the classes below would inherit the constructor of their second base.
    if not TYPE_CHECKING:
        __init__ = Exception.__init__


class UnknownName(SparseError, LookupError):
    """Raised if no selector or other part has this id; the message lists the registered ids."""


class InvalidOption(SparseError, ValueError):
    """Raised if an option's value is invalid, or cannot be combined with the other options."""


class UnsupportedInput(SparseError, TypeError):
    """Raised for a tensor that cannot be compressed because of its dtype, device, size or name, and
    for a graph, optimizer or Keras backend that is not supported."""


class UnsupportedReduction(SparseError, RuntimeError):
    """Raised if Horovod reduces gradients by another operation than Sum or Average. Another process
    set than the compressor's usually raises RankMismatch instead."""


class UnknownGradient(SparseError, LookupError):
    """Raised for the gradient of a tensor that is not one of the compressor's tensors."""


class ChangedGradient(SparseError, RuntimeError):
    """Raised if the program changed a gradient while Horovod was reducing it, because Horovod's
    result would overwrite the change."""


class NonFiniteGradient(SparseError, ArithmeticError):
    """Raised with ``on_nonfinite="raise"`` if the sum of the ranks' gradients of a tensor has NaN
    or Inf. If instead one rank's gradient of a compressed tensor has NaN or Inf, all ranks raise
    PeerFailure, whose text contains this error. The same happens if a residual overflows, whatever
    ``on_nonfinite`` is."""

    is_of_gradient = False
    """Whether the gradient itself has NaN or Inf, and not only its sum with the residual."""


class CorruptPayload(SparseError, ValueError):
    """Raised if received bytes are not a valid message, because they are truncated, altered or in
    another version of the message format."""


class RankMismatch(SparseError, RuntimeError):
    """Raised if ranks, or their saved states, differ in model, configuration or step."""


class ReplicaMismatch(SparseError, RuntimeError):
    """Raised if ranks have applied different gradients, so that their replicas of the model differ.
    The option ``check_replicas_every`` turns this check on."""


class PeerFailure(SparseError, RuntimeError):
    """Raised on all ranks if one of them failed, for example in ``compress`` or in the writing of a
    checkpoint. The message has the text of the failed rank's error, if that rank could send it."""


class ExchangeTimeout(SparseError, TimeoutError):
    """Raised if a collective does not finish in ``timeout_s`` seconds."""


class CorruptCheckpoint(SparseError, ValueError):
    """Raised if a checkpoint file or a saved state is truncated or altered, has NaN or Inf, or was
    not written by hvd_sparse."""
