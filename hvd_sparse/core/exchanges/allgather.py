"""Every rank gets every rank's message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...registry import EXCHANGES
from ..collective import AllGather
from ..message import split_messages
from ._base import Conversation


@EXCHANGES.register("allgather")
@dataclass(frozen=True)
class AllGatherExchange:
    """Gather all messages on all ranks, by one allgather of bytes a bucket.

    Every rank receives (world_size - 1) messages: grows with the number of ranks, and beats a dense ring while
    density < 1 / world_size (at 8 bytes an entry).

    Paper: aji2017sparse.
    """

    paper: ClassVar[str | None] = "aji2017sparse"
    phases: ClassVar[tuple[str, ...]] = ("allgather",)

    def run(self, message: np.ndarray, rank: int, world_size: int) -> Conversation:
        gathered = yield AllGather(message)
        return split_messages(gathered, world_size)
