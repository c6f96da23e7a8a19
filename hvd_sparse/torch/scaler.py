"""The loss scale, as ``torch.amp`` holds it."""

from __future__ import annotations

from collections.abc import Callable

from hvd_sparse.errors import InvalidOption
from hvd_sparse.untyped import GradScaler


def scale_of(grad_scaler: GradScaler) -> Callable[[], float]:
    """Asks a ``torch.amp.GradScaler`` or a callable for the scale at every step; 1 for None."""
    if grad_scaler is None:
        return lambda: 1.0
    if hasattr(grad_scaler, "get_scale"):
        return lambda: float(grad_scaler.get_scale())
    if callable(grad_scaler):
        return lambda: float(grad_scaler())
    raise InvalidOption(
        f"grad_scaler is {grad_scaler!r}: give the torch.amp.GradScaler that scales the loss, or a "
        "callable that returns "
        "the scale"
    )
