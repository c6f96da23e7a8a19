"""Optimizers that are handed over: which memory does their work, and what is said where none
can."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from hvd_sparse.configuration import Configuration
from hvd_sparse.errors import InvalidOption
from hvd_sparse.memories.adam_correction import AdamCorrection
from hvd_sparse.memories.error_feedback import ErrorFeedback
from hvd_sparse.memories.momentum_correction import MomentumCorrection
from hvd_sparse.registry import MEMORIES

logger = logging.getLogger("hvd_sparse")

COSTS_ACCURACY_AT = 0.01
"""Densities up to this one were measured to cost accuracy where momentum meets plain error
feedback."""
KEPT = ("masking", "clip_norm")
"""Options of a memory that are no optimizer's."""


@dataclass(frozen=True)
class Handover:
    """The demands of an optimizer on a memory.

    Attributes
    ----------
    name : the optimizer's class
    memory : the memory that does its work; None where there is none
    """

    name: str
    memory: MomentumCorrection | AdamCorrection | None

    def join(self, given: object) -> object:
        """Return the memory to use.

        Parameters
        ----------
        given : the option ``memory``; None where it was left out

        Raises
        ------
        InvalidOption : the option cannot be kept
        """
        if self.memory is None:
            logger.warning(
                "%s: no memory does what this optimizer does, so its gradients are sent with plain "
                "error feedback; it gets "
                "rare and large entries instead of gradients, which can cost accuracy at low "
                "densities where it has momentum "
                "or adapts its steps: use SGD, Adam or AdamW, or a density above %g",
                self.name,
                COSTS_ACCURACY_AT,
            )
            return "error_feedback" if given is None else given
        chosen: object = None if given is None else MEMORIES.resolve(given)
        if chosen is None or chosen == ErrorFeedback():
            return self.memory
        if type(chosen) is not type(self.memory):
            raise InvalidOption(
                f"memory is {chosen!r}, and optimizer={self.name} takes "
                f"{self.memory.id!r}, "  # type: ignore[union-attr]
                "which does the optimizer's work before the selection: leave out one of them"
            )
        kept = {name: getattr(chosen, name) for name in KEPT if hasattr(chosen, name)}
        return replace(self.memory, **kept)


def warn_of_rare_entries(configuration: Configuration, what: str) -> None:
    """Say that accuracy is at stake where a memory knows nothing of an optimizer's momentum.

    Parameters
    ----------
    configuration : of the compressor
    what : the momentum, in words
    """
    density = configuration.density(LONG_RUN)
    if density is None or density > COSTS_ACCURACY_AT or configuration.memory.finishes:
        return
    logger.warning(
        "the optimizer has %s and gets gradients of density %g with memory %s, which can cost "
        "accuracy: give the optimizer to "
        "the compressor, Compression.<method>(..., optimizer=optimizer), which then applies "
        "momentum before it selects",
        what,
        density,
        configuration.memory.id,
    )


LONG_RUN = 1_000_000
"""A step behind any warm-up."""
