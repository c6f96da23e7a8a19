"""Errors that hvd_sparse raises on purpose: one root, one class per kind of remedy.

A message names the tensor (if the error concerns one), the wrong value and the remedy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING


class SparseError(Exception):
    """Root of all errors of hvd_sparse."""

    # AutoGraph passes on an error of tracing unchanged only if its constructor is Exception's. The
    # classes below would inherit another from their second base, and reach the user as a
    # StagingError.
    if not TYPE_CHECKING:
        __init__ = Exception.__init__


class UnknownName(SparseError, LookupError):
    """An unregistered id; the message lists the registered ids."""


class InvalidOption(SparseError, ValueError):
    """An option whose value or combination makes no sense."""


class UnsupportedInput(SparseError, TypeError):
    """A tensor that cannot be compressed: its dtype, its device, its size, its name."""


class UnsupportedReduction(SparseError, RuntimeError):
    """A reduction by Horovod other than Sum or Average, or over another process set."""


class UnknownGradient(SparseError, LookupError):
    """A gradient that belongs to no tensor that was registered with the compressor."""


class ChangedGradient(SparseError, RuntimeError):
    """A gradient that the program changed while Horovod had it; the result would overwrite the
    change."""


class NonFiniteGradient(SparseError, ArithmeticError):
    """A gradient, sum or residual with NaN or Inf."""

    is_of_gradient = False
    """Whether the gradient itself has NaN or Inf, not only its sum with the residual."""


class CorruptPayload(SparseError, ValueError):
    """Bytes that are no valid message of hvd_sparse: truncated, altered or of another version."""


class RankMismatch(SparseError, RuntimeError):
    """Ranks that run different models, configurations or steps."""


class ReplicaMismatch(SparseError, RuntimeError):
    """Ranks that have applied different gradients."""


class PeerFailure(SparseError, RuntimeError):
    """A failure of another rank inside ``compress``; the message has the text of its error."""


class ExchangeTimeout(SparseError, TimeoutError):
    """A collective that did not finish in ``timeout_s`` seconds."""


class CorruptCheckpoint(SparseError, ValueError):
    """A file or a saved state that is incomplete, or was not written by hvd_sparse."""
