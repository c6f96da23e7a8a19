"""gTop-k: a tree of merges, each cut to k."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hvd_sparse.checks import check_truth
from hvd_sparse.collectives.contract import AllGather, AllToAll
from hvd_sparse.collectives.topology import Placement
from hvd_sparse.exchanges._entries import merge, restrict, subtract
from hvd_sparse.exchanges.context import Arrival, Item, Parcel
from hvd_sparse.exchanges.contract import Conversation, Exchange, ring
from hvd_sparse.registry import EXCHANGES
from hvd_sparse.selectors._candidates import largest_of
from hvd_sparse.selectors.contract import Selector
from hvd_sparse.types import Selection

NO_BYTES = np.empty(0, np.uint8)


@EXCHANGES.register("gtopk")
@dataclass(frozen=True)
class GTopK(Exchange):
    """Merge two ranks' entries at a time and keep the k largest of each merge; all get what the
    root is left with.

        round j: rank r + 2**j sends its k entries to rank r, where 2**(j + 1) divides r
        received: ceil(log2 N) * k entries at the root, k entries everywhere else

    A rank keeps back what it sent at indices that the root's k entries do not have.

    Parameters
    ----------
    conserving : also keep, at the rank that cut it, what was cut at an index that reached the root
        by another way. The paper's rule (False) loses it: of 4 ranks that bring a:1, b:1.1, a:2 and
        c:0.1 with k = 1, the first rank's 1.0 is cut in favour of b, and then taken for sent,
        because the third rank's a wins.

    Notes
    -----
    The result has at most k entries.  It is the top k of the sum of all ranks' entries for N = 2,
    and for any N where no two ranks selected the same index.

    Every round is an alltoall in which each rank sends to one other or to none; the result travels
    by an allgather to which only the root brings entries.

    Paper: shi2019gtopk.  Departs: any number of ranks, not powers of two alone; ``conserving``.
    """

    conserving: bool = True

    paper: ClassVar[str | None] = "shi2019gtopk"
    settles_later: ClassVar[bool] = True
    sums_again: ClassVar[bool] = True
    needs_count: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_truth(self.conserving, "conserving of GTopK")

    @property
    def conserves(self) -> bool:
        return self.conserving

    def phases(self, selector: Selector, world_size: int) -> tuple[str, ...]:
        return len(_distances(world_size)) * ("alltoall",) + ("allgather",)

    def inbound(self, density: float, entry_bytes: float, placement: Placement) -> float:
        return max(len(_distances(placement.world_size)), ring(placement)) * density * entry_bytes

    def run(self, parcel: Parcel) -> Conversation:
        tree: dict[int, _Branch] = {}
        with parcel.guarded():
            if not parcel.is_lost:
                tree = {position: _Branch(parcel, item) for position, item in parcel.items.items()}
        for distance in _distances(parcel.world_size):
            place = parcel.rank % (2 * distance)
            sends, receives = (
                place == distance,
                place == 0 and parcel.rank + distance < parcel.world_size,
            )
            outgoing = _encode(parcel, tree) if sends else NO_BYTES
            splits = np.zeros(parcel.world_size, np.int32)
            splits[parcel.rank - distance if sends else parcel.rank] = outgoing.size
            received = yield AllToAll(outgoing, splits)
            if receives:
                with parcel.guarded():
                    (message,) = parcel.read(received, [parcel.rank + distance])
                    for position, branch in tree.items():
                        branch.take_in(message.frame(position))
        gathered = yield AllGather(_encode(parcel, tree if parcel.rank == 0 else {}))
        root = parcel.read(gathered)[0]
        parcel.finish()
        return {p: branch.finish(root.frame(p), self.conserving) for p, branch in tree.items()}


def _distances(world_size: int) -> list[int]:
    return [2**j for j in range((world_size - 1).bit_length())]


def _encode(parcel: Parcel, tree: dict[int, _Branch]) -> np.ndarray:
    frames: dict[int, np.ndarray] = {}
    with parcel.guarded():
        frames = {position: branch.encode() for position, branch in tree.items()}
    return parcel.write(frames)


class _Branch:
    """One tensor at one rank: the entries that are left of what came together here, and those that
    were cut."""

    def __init__(self, parcel: Parcel, item: Item) -> None:
        self._codec, self._kernels = item.codec, parcel.pipeline.kernels
        self._item = item
        self._held = self._cut = Selection.empty(item.spec.numel, item.spec.accumulator)
        self._hold(item.selection)

    def _hold(self, total: Selection) -> None:
        self._held = largest_of(total, self._item.count, self._kernels)
        self._cut = merge(self._cut, restrict(total, self._held.indices, outside=True))

    def take_in(self, frame: np.ndarray) -> None:
        """Merge with another rank's entries: this rank's, the lower, first."""
        theirs = self._decode(frame)
        self._hold(merge(self._held, theirs))

    def encode(self) -> np.ndarray:
        """The frame to pass on; what it rounds away stays here."""
        frame: np.ndarray = self._codec.encode(self._held, self._kernels)
        if not self._codec.is_exact:
            passed = self._codec.decode(frame, self._kernels)
            self._cut, self._held = merge(self._cut, subtract(self._held, passed)), passed
        return frame

    def finish(self, frame: np.ndarray, conserving: bool) -> Arrival:
        """What becomes of this rank's entries, now that the root's are known."""
        applied = self._decode(frame)
        left = restrict(self._item.selection, applied.indices)
        returned = restrict(self._cut, applied.indices) if conserving else None
        return Arrival(((slice(0, applied.numel), applied),), left, returned)

    def _decode(self, frame: np.ndarray) -> Selection:
        selection: Selection = self._codec.decode(frame, self._kernels)
        return self._item.checked(selection, self._item.spec.numel)
