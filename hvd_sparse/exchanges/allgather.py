from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hvd_sparse.collectives.contract import Placement, Request
from hvd_sparse.exchanges.context import BEYOND_RANGE, Arrival, ExchangeContext
from hvd_sparse.exchanges.contract import Conversation, Exchange
from hvd_sparse.registry import EXCHANGES
from hvd_sparse.selectors.contract import Selector


@EXCHANGES.register("allgather")
@dataclass(frozen=True)
class AllGatherExchange(Exchange):
    """Gather all ranks' selections on every rank, by one allgather per bucket, and add them up.

        received per rank: (N - 1) * k entries, for N ranks

    The number of received bytes grows with N. At 8 bytes per entry, it is smaller than that of a
    dense ring allreduce if density < 1 / N.

    Paper: aji2017sparse.
    """

    is_one_allgather: ClassVar[bool] = True
    needs_host: ClassVar[str] = ""

    def phases(self, selector: Selector, world_size: int) -> tuple[str, ...]:
        return ("allgather",)

    def inbound(self, density: float, entry_bytes: float, placement: Placement) -> float:
        return (placement.world_size - 1) * density * entry_bytes

    def run(self, context: ExchangeContext) -> Conversation:
        frames = {}
        for position, member in context.members.items():
            if member.outgoing.frame is not None:
                frames[position] = member.outgoing.frame
        messages = context.read((yield Request("allgather", context.write(frames))))
        arrivals = {}
        for position, member in context.members.items():
            whole = slice(0, member.spec.numel)
            parts = []
            for message in messages:
                frame = message.frames.get(position)
                if frame is not None:
                    parts.append((whole, frame))
            # A rank with NaN or Inf in its gradient sends no frame.
            is_whole = len(parts) == len(messages)
            arrivals[position] = Arrival(tuple(parts)) if is_whole else BEYOND_RANGE
        return arrivals
