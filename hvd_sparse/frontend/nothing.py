"""A compressor that sends nothing: how quick a step could be at most."""

from __future__ import annotations

import logging

logger = logging.getLogger("hvd_sparse")


class SendNothing:
    """Base of the compressors that return every rank's own gradient.

    Horovod reduces one number for each tensor, because it must reduce something. No compressor of
    this package can be faster, because selection costs time. Ranks diverge, so the result is a time
    and not a model.
    """

    def __init__(self) -> None:
        logger.warning(
            "Compression.nothing exchanges no gradients, and every rank trains alone: measure the "
            "time of a step, then train with another compression"
        )
