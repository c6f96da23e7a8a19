"""The loss scale, as ``torch.amp`` holds it."""

from __future__ import annotations

from collections.abc import Callable

from hvd_sparse.errors import InvalidOption
from hvd_sparse.untyped import GradScaler


class StepScale:
    """The loss scale of a step, asked for once: a ``GradScaler`` on an accelerator waits for it.

    Parameters
    ----------
    ask : returns the scale
    """

    def __init__(self, ask: Callable[[], float]) -> None:
        self._ask = ask
        self._scale: float | None = None

    def __call__(self) -> float:
        if self._scale is None:
            self._scale = self._ask()
        return self._scale

    def forget(self) -> None:
        """Ask anew: results of the step arrive, and behind the last one the scale may change."""
        self._scale = None


def scale_of(grad_scaler: GradScaler) -> StepScale:
    """Return the loss scale of a ``torch.amp.GradScaler``, or of a callable that returns it."""
    if hasattr(grad_scaler, "get_scale"):
        return StepScale(lambda: float(grad_scaler.get_scale()))
    if callable(grad_scaler):
        return StepScale(lambda: float(grad_scaler()))
    raise InvalidOption(
        f"grad_scaler is {grad_scaler!r}: give the torch.amp.GradScaler that scales the loss, or a "
        "callable that returns "
        "the scale"
    )
