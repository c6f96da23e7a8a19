"""A witness of what a program does to results before the optimizer applies them."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable

import torch

logger = logging.getLogger("hvd_sparse")

STEPS = 100
"""Steps that are looked at: gradients are largest, and clipped most, in the first."""
SAMPLE = 4096
"""Entries of the tensor that are looked at."""
TOLERANCE = 0.02
"""Share by which 16 bits, and a scaler's division, may change an entry."""
SMALLEST = 1e-6
"""Magnitude that float16 holds with less precision than that."""


class Witness:
    """Sees whether a result is another when the optimizer applies it, by the largest entry of the
    smallest tensor.

    With ``optimizer=`` results are updates.  Clipped, or divided by a loss scale that the
    compressor does not know, they train little or nothing.

    Parameters
    ----------
    parameters : the compressor's
    remedy : for clipping, in words
    """

    def __init__(self, parameters: Iterable[torch.Tensor], remedy: str) -> None:
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        self._left = iter(sorted(trained, key=torch.Tensor.numel))
        self._parameter = next(self._left, None)
        self._remedy = remedy
        self._steps = 0
        self._expected: tuple[int, float] | None = None

    def note(self, parameter: torch.Tensor, result: torch.Tensor, scale: float) -> None:
        """Keep an entry of a result.

        scale : of the loss, which the scaler is about to divide by
        """
        if parameter is not self._parameter or result.is_sparse:
            return
        entries = result.detach().reshape(-1)[:SAMPLE]
        index = int(entries.abs().argmax())
        self._expected = index, float(entries[index]) / scale

    def look(self, name: str) -> None:
        """Say once that results are changed, with the remedy.

        name : of the optimizer's class
        """
        if self._expected is None or self._parameter is None:
            return
        (index, expected), self._expected = self._expected, None
        gradient = self._parameter.grad
        self._steps += 1
        if expected == 0:  # nothing to be seen by: the next tensor
            self._parameter = next(self._left, None)
            return
        if gradient is None or gradient.is_sparse or not math.isfinite(expected):
            return
        found = float(gradient.detach().reshape(-1)[index])
        if abs(found - expected) > TOLERANCE * abs(expected) + SMALLEST:
            logger.warning(
                "gradients were multiplied by %g after they came back from the compressor, which "
                "with optimizer= brings updates of %s, not gradients: every step is as much "
                "shorter or longer. If they are clipped, %s; if a GradScaler divides them, give "
                "the compressor grad_scaler=scaler",
                found / expected,
                name,
                self._remedy,
            )
            self._steps = STEPS
        if self._steps >= STEPS:
            self._parameter = None
