"""Detects a program with a tape that does not apply the results, or changes them first."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np

from hvd_sparse.tensorflow.keras3 import value_of
from hvd_sparse.types import TensorSpec
from hvd_sparse.untyped import Value

logger = logging.getLogger("hvd_sparse")

STEPS = 100
"""Steps that are checked; each costs a copy of one variable."""
ENOUGH = 3
"""Steps of one kind before a warning: one or two may be skipped, or have a learning rate of 0."""
TOLERANCE = 0.02
"""Share by which roundings, and a loss scale's division, may change an update."""
VISIBLE = 1e-4
"""Size of an update, beside the value, that float32 shows with less error than that."""


class Witness:
    """Compares the smallest compressed variable between steps with its expected update.

    ``factors`` returns by how much a handed-over optimizer multiplies results and values to update
    a variable; None without one.
    """

    def __init__(
        self,
        variables: Sequence[Value],
        specs: dict[int, TensorSpec],
        factors: Callable[[], tuple[float, float]] | None,
    ) -> None:
        self._position = min(specs, key=lambda i: specs[i].numel, default=-1)
        self._key = specs[self._position].key if specs else ""
        self._variable = variables[self._position] if specs else None
        self._factors = factors
        self._before: tuple[np.ndarray, int, list[float]] | None = None
        self._steps = self._unchanged = self._altered = 0

    def note(self, position: int | None, result: np.ndarray, scale: float) -> None:
        """Keep the variable's value; the program will divide its result by the loss scale."""
        if position != self._position or not result.any() or not np.isfinite(result).all():
            return
        index, expected = int(np.abs(result).argmax()), []
        value = np.array(value_of(self._variable)).reshape(-1)
        if self._factors is not None:
            factor, decay = self._factors()
            expected = [-factor * result[index] / scale]
            expected.append(expected[0] - decay * value[index])  # where Keras decays the variable
        self._before = value, index, expected

    def look(self, position: int) -> None:
        """Look at the variable when its next gradient arrives; warn once, with the remedy."""
        if position != self._position or self._before is None:
            return
        (value, index, expected), self._before = self._before, None
        now = np.array(value_of(self._variable)).reshape(-1)
        self._steps += 1
        if np.array_equal(value, now):
            self._unchanged += 1
        elif expected and abs(expected[0]) > VISIBLE * abs(value[index]):
            found = float(now[index]) - float(value[index])
            self._altered += all(abs(found - e) > TOLERANCE * abs(e) for e in expected)
            if self._altered >= ENOUGH:
                self._tell(ALTERED, found / expected[0], self._key)
        if self._unchanged >= ENOUGH:
            self._tell(UNCHANGED, self._unchanged, self._key)
        if self._steps >= STEPS:
            self._position = -1

    def _tell(self, text: str, *words: object) -> None:
        self._position = -1
        logger.warning(text, *words)


UNCHANGED = (
    "%d gradients of %r were reduced, and the variable did not change before the next: if they "
    "were thrown away, the residual keeps what was not sent of them, and it moves the weights "
    "later. Take such gradients from a plain tf.GradientTape; accumulate batches before the tape "
    "reduces them, and leave a step out before, not behind, hvd.DistributedGradientTape's "
    "gradient(). At a learning rate of 0 nothing is wrong"
)
ALTERED = (
    "gradients were multiplied by about %g after the compressor had given them back (of %r), which "
    "with optimizer= are updates, not gradients: every step is as much shorter or longer. If they "
    "are clipped, leave that out, and give the bound to the memory, as in memory={'id': "
    "'adam_correction', 'clip_norm': 1.0}; if a loss scale divides them, give the compressor "
    "grad_scaler="
)
