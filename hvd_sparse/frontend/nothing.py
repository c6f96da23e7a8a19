"""A compressor that sends nothing: how quick a step could be at most."""

from __future__ import annotations

import logging

logger = logging.getLogger("hvd_sparse")


class SendNothing:
    """Base of both frontends' compressor that leaves every rank its own gradient.

    Horovod reduces one number a tensor, as it must have something. A step is as quick as any
    compressor of this package could make it, and a little quicker: selecting costs something. Ranks
    train apart, so that what comes out is a time and no model.
    """

    def __init__(self) -> None:
        logger.warning(
            "Compression.nothing exchanges no gradients, and every rank trains alone: measure the "
            "time of a step, then train with another compression"
        )
