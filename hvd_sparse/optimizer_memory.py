"""Handed-over optimizers: the memory that does their work, and warnings if there is none."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from hvd_sparse.configuration import Configuration
from hvd_sparse.errors import InvalidOption
from hvd_sparse.memories.adam_correction import AdamCorrection
from hvd_sparse.memories.error_feedback import ErrorFeedback
from hvd_sparse.memories.momentum_correction import MomentumCorrection
from hvd_sparse.memories.momentum_feedback import MomentumFeedback
from hvd_sparse.memories.muon_correction import MuonCorrection
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

    name : the optimizer's class
    memories : kinds of memories that do its work, the first by default; empty if there is none
    """

    name: str
    memories: tuple[type, ...]

    def join(self, given: object) -> object:
        """Return the memory to use, given the option ``memory``, with the optimizer's own options
        at their defaults; InvalidOption if it does not fit the optimizer.

        The optimizer supplies its options at every step.  In the configuration they would tie a
        checkpoint to the momentum that a schedule had reached.
        """
        if not self.memories:
            logger.warning(
                "%s: no memory can do this optimizer's work, so its gradients are sent with "
                "plain error feedback. The optimizer gets rare, large entries, which can cost "
                "accuracy at low densities if it has momentum or adaptive steps: use SGD, Adam, "
                "AdamW, NAdam or Muon, or a density above %g",
                self.name,
                COSTS_ACCURACY_AT,
            )
            return "error_feedback" if given is None else given
        chosen: object = None if given is None else MEMORIES.resolve(given)
        if chosen is None or chosen == ErrorFeedback():
            return self.memories[0]()
        if type(chosen) not in self.memories:
            known = " or ".join(repr(memory.id) for memory in self.memories)  # type: ignore
            raise InvalidOption(
                f"memory is {chosen!r}, and optimizer={self.name} takes {known}, "
                "which does the optimizer's work before the selection: leave out one of them"
            )
        kept = {name: getattr(chosen, name) for name in KEPT if hasattr(chosen, name)}
        return type(chosen)(**kept)


OF_SGD: tuple[type, ...] = (MomentumFeedback, MomentumCorrection)
OF_ADAM: tuple[type, ...] = (AdamCorrection,)
OF_MUON: tuple[type, ...] = (MuonCorrection,)
"""Kinds of memories that do these optimizers' work."""


def warn_of_rare_entries(configuration: Configuration, what: str) -> None:
    """Warn of lost accuracy if the memory does not handle an optimizer's momentum, named
    ``what``."""
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
