"""Errors that hvd_sparse raises on purpose: one base class, and one class per kind of remedy.

A message names the tensor (if the error concerns one), the wrong value and the remedy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING


class SparseError(Exception):
    """Base class of all errors of hvd_sparse."""

    # AutoGraph raises an error of tracing unchanged only if its constructor is that of Exception.
    # The classes below would inherit another constructor from their second base class, and the user
    # would get a StagingError.
    if not TYPE_CHECKING:
        __init__ = Exception.__init__


class UnknownName(SparseError, LookupError):
    """Raised for an id that is not registered; the message lists the registered ids."""


class InvalidOption(SparseError, ValueError):
    """Raised for an option whose value is invalid, or does not go with the other options."""


class UnsupportedInput(SparseError, TypeError):
    """Raised for a tensor that cannot be compressed because of its dtype, device, size or name."""


class UnsupportedReduction(SparseError, RuntimeError):
    """Raised if Horovod reduces other than by Sum or Average, or over another process set."""


class UnknownGradient(SparseError, LookupError):
    """Raised for a gradient of a tensor that was not registered with the compressor."""


class ChangedGradient(SparseError, RuntimeError):
    """Raised if the program changed a gradient while Horovod reduced it, because the result would
    overwrite the change."""


class NonFiniteGradient(SparseError, ArithmeticError):
    """Raised if a gradient, sum or residual has NaN or Inf."""

    is_of_gradient = False
    """Whether the gradient itself has NaN or Inf, and not only its sum with the residual."""


class CorruptPayload(SparseError, ValueError):
    """Raised for bytes that are no valid message: truncated, altered or of another version."""


class RankMismatch(SparseError, RuntimeError):
    """Raised if ranks run different models, configurations or steps."""


class ReplicaMismatch(SparseError, RuntimeError):
    """Raised if ranks have applied different gradients."""


class PeerFailure(SparseError, RuntimeError):
    """Raised if another rank failed in ``compress``; the message has the text of its error."""


class ExchangeTimeout(SparseError, TimeoutError):
    """Raised if a collective does not finish in ``timeout_s`` seconds."""


class CorruptCheckpoint(SparseError, ValueError):
    """Raised for a file or a saved state that is incomplete, or was not written by hvd_sparse."""
