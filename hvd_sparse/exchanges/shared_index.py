"""ScaleCom: one rank's indices, everybody's values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from hvd_sparse.collectives.contract import AllGather, AllReduce
from hvd_sparse.collectives.topology import Placement
from hvd_sparse.core.wire.message import Message
from hvd_sparse.exchanges._entries import read_indices, write_indices
from hvd_sparse.exchanges.context import Arrival, Parcel
from hvd_sparse.exchanges.contract import Conversation, Exchange, ring
from hvd_sparse.registry import EXCHANGES
from hvd_sparse.selectors.contract import Selector
from hvd_sparse.types import Selection

INDEX_BYTES, VALUE_BYTES = 4, 4
NOTHING = np.zeros(1, np.float32)
"""What a sum is given when some rank has failed and all know."""


@EXCHANGES.register("shared_index")
@dataclass(frozen=True)
class SharedIndex(Exchange):
    """Let one rank select, and sum the values that all ranks have there.

        leader of a step: step mod N
        received a rank:  4 k bytes of indices, but by the leader, and 2 (N - 1) / N * 4 k bytes of
        values:
                          12 k (N - 1) / N on average, whatever the number of ranks N

    Selectors whose indices all ranks find alike need no leader and send no index: ``random_k`` with
    ``shared_seed`` draws them, ``chunked`` finds them from norms that are summed over the ranks
    first.

    Notes
    -----
    Compressing commutes with averaging: the sum of what is sent is what would be sent of the sum.
    That the leader's indices are good for the others is an assumption, about how alike the ranks'
    accumulated gradients are.

    Horovod's broadcast cannot change its root inside a TensorFlow graph, so the indices travel by
    an allgather to which the leader alone brings any; the others' headers (36 bytes and 4 a tensor)
    tell of failures.  Values are summed by an allreduce, as float32 or float64: codecs are not
    used.

    Paper: chen2020scalecom.
    """

    paper: ClassVar[str | None] = "chen2020scalecom"
    settles_later: ClassVar[bool] = True
    shares_indices: ClassVar[bool] = True

    def phases(self, selector: Selector, world_size: int) -> tuple[str, ...]:
        sums = 2 if selector.sums_statistics else 1
        return ("allgather",) + sums * ("allreduce",)

    def selects_on(self, rank: int, world_size: int, step: int, selector: Selector) -> bool:
        if selector.sums_statistics:
            return False
        return selector.has_shared_indices or rank == step % world_size

    def inbound(self, density: float, entry_bytes: float, placement: Placement) -> float:
        return ring(placement) * (INDEX_BYTES + 2 * VALUE_BYTES) * density

    def run(self, parcel: Parcel) -> Conversation:
        leaders = {p: item.state.steps % parcel.world_size for p, item in parcel.items.items()}
        has_leader = not any(_is_common(item.selector) for item in parcel.items.values())
        mine = [
            p
            for p, leader in leaders.items()
            if has_leader and leader == parcel.rank and not parcel.is_lost
        ]
        gathered = yield AllGather(
            parcel.write({p: write_indices(parcel.items[p].selection) for p in mine})
        )
        chosen: dict[int, np.ndarray] = {}
        with parcel.guarded():
            messages = parcel.read(gathered)
            if has_leader:
                chosen = {p: _indices(parcel, messages[leader], p) for p, leader in leaders.items()}
        if parcel.pipeline.configuration.selector.sums_statistics:
            statistics = yield AllReduce(_statistics(parcel))
            with parcel.guarded():
                _choose_by(parcel, statistics)
        if not has_leader and not parcel.is_lost:
            chosen = {p: item.selection.indices for p, item in parcel.items.items()}
        summed = yield AllReduce(_values(parcel, chosen))
        parcel.finish()
        return _arrivals(parcel, chosen, summed)


def _is_common(selector: Selector) -> bool:
    return selector.has_shared_indices or selector.sums_statistics


def _indices(parcel: Parcel, message: Message, position: int) -> np.ndarray:
    return read_indices(message.frame(position), parcel.items[position].spec.numel)


def _joined(parcel: Parcel, arrays: list[np.ndarray]) -> np.ndarray:
    """One array, of a dtype that holds them all; a sum of nothing is still a sum."""
    return (
        NOTHING
        if parcel.is_lost or not arrays
        else np.concatenate([*arrays, NOTHING.astype(arrays[0].dtype)])
    )


def _statistics(parcel: Parcel) -> np.ndarray:
    context = parcel.pipeline.kernels
    return _joined(
        parcel,
        [
            item.selector.measure(_accumulated(parcel, p), context)
            for p, item in parcel.items.items()
        ],
    )


def _choose_by(parcel: Parcel, statistics: np.ndarray) -> None:
    """Every rank chooses by the same sums."""
    if parcel.is_lost:
        return
    offset = 0
    for position, item in parcel.items.items():
        accumulated = _accumulated(parcel, position)
        size = item.selector.measures(accumulated.size)
        part = statistics[offset : offset + size].astype(accumulated.dtype, copy=False)
        found = item.selector.find_by(part, accumulated, parcel.pipeline.kernels)
        item.ticket.outgoing = replace(item.outgoing, found=found)
        offset += size


def _accumulated(parcel: Parcel, position: int) -> np.ndarray:
    accumulated = parcel.items[position].outgoing.accumulated
    assert accumulated is not None
    return accumulated


def _values(parcel: Parcel, chosen: dict[int, np.ndarray]) -> np.ndarray:
    return _joined(parcel, [_accumulated(parcel, p)[indices] for p, indices in chosen.items()])


def _arrivals(
    parcel: Parcel, chosen: dict[int, np.ndarray], summed: np.ndarray
) -> dict[int, Arrival]:
    arrivals, offset = {}, 0
    for position, indices in chosen.items():
        item, accumulated = parcel.items[position], _accumulated(parcel, position)
        sums = summed[offset : offset + indices.size].astype(accumulated.dtype, copy=False)
        left = Selection(indices, accumulated[indices], accumulated.size)
        whole = slice(0, item.spec.numel)
        arrivals[position] = Arrival(((whole, Selection(indices, sums, accumulated.size)),), left)
        item.ticket.outgoing = replace(item.outgoing, entries=indices.size, accumulated=None)
        offset += indices.size
    return arrivals
