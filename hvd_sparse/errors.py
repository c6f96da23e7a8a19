"""Errors that hvd_sparse raises on purpose: one root, one class per kind of remedy.

A message names the tensor (where there is one), the value that was wrong and the remedy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING


class SparseError(Exception):
    """Root of all errors of hvd_sparse."""

    # TensorFlow's AutoGraph hands an error of tracing on as it is only if its constructor is that
    # of Exception; the
    # classes below would inherit another from their second base and reach the user as a
    # StagingError.
    if not TYPE_CHECKING:
        __init__ = Exception.__init__


class UnknownName(SparseError, LookupError):
    """An id that no registry knows; the message lists those that exist."""


class InvalidOption(SparseError, ValueError):
    """An option whose value or combination makes no sense."""


class UnsupportedInput(SparseError, TypeError):
    """A tensor that cannot be compressed: its dtype, its device, its size, its name."""


class UnsupportedReduction(SparseError, RuntimeError):
    """A reduction of Horovod's other than Sum or Average, or over another process set."""


class UnknownGradient(SparseError, LookupError):
    """A gradient that belongs to no tensor that was registered with the compressor."""


class ChangedGradient(SparseError, RuntimeError):
    """A gradient that the program changed while Horovod had it; the result would overwrite the
    change."""


class NonFiniteGradient(SparseError, ArithmeticError):
    """A gradient with NaN or Inf, which would have been accumulated.

    Attributes
    ----------
    is_of_gradient : the gradient itself has them, not only its sum with what was kept back
    """

    is_of_gradient = False


class CorruptPayload(SparseError, ValueError):
    """Bytes that are no message of ours: truncated, altered or of another version."""


class RankMismatch(SparseError, RuntimeError):
    """Ranks that run different models, configurations or steps."""


class ReplicaMismatch(SparseError, RuntimeError):
    """Ranks that have applied different gradients."""


class PeerFailure(SparseError, RuntimeError):
    """A failure of some rank inside ``compress``; the message carries its words."""


class ExchangeTimeout(SparseError, TimeoutError):
    """A collective that did not finish in ``timeout_s`` seconds."""


class CorruptCheckpoint(SparseError, ValueError):
    """A file or a saved state that is not whole, or not of hvd_sparse."""
