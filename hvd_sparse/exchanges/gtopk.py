from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hvd_sparse.checks import check_truth, option
from hvd_sparse.collectives.contract import Placement, Request
from hvd_sparse.exchanges.context import BEYOND_RANGE, Arrival, ExchangeContext, Member
from hvd_sparse.exchanges.contract import Conversation, Exchange, ring
from hvd_sparse.kernels.arrays import is_finite
from hvd_sparse.registry import EXCHANGES
from hvd_sparse.selectors.contract import Selector, largest_of
from hvd_sparse.types import Selection


@EXCHANGES.register("gtopk")
@dataclass(frozen=True)
class GTopK(Exchange):
    """Merge the selections of two ranks at a time, and keep the k largest entries of each merge.

        round j: rank r + 2**j sends its k entries to rank r, where 2**(j + 1) divides r
        received: ceil(log2 N) * k entries at the root (rank 0), k to ceil(log2 N) * k on others

    All ranks then receive the root's final entries and apply them. Entries at other indices stay in
    the residual of the rank that selected them.

    Parameters
    ----------
    conserving : where the value of a cut entry goes. If a merge cuts an entry, another rank's entry
        at the same index may still reach the root and be applied. Then the rank that selected the
        cut entry removes it from its residual, too. If True, the rank that made the merge adds the
        cut entry to its own residual. If False, as in the paper, the cut entry is lost

    Notes
    -----
    An example of a lost entry with k = 1: rank 0 selects 1 at index a, rank 1 selects 1.1 at b,
    rank 2 selects 2 at a, and rank 3 selects 0.1 at c. The merge of ranks 0 and 1 cuts the 1 at a.
    At the end the 2 at a is applied, so rank 0 removes index a from its residual, although its 1
    was not applied.

    The result has at most k entries. With 2 ranks, it is the top k of the sum of both ranks'
    entries. With more ranks, this holds if no two ranks selected the same index. Every round is an
    alltoall in which each rank sends to at most one other rank. The final entries are sent by an
    allgather in which only the root's message has entries.

    Paper: shi2019gtopk.  Departs: the number of ranks need not be a power of two; ``conserving``.
    """

    conserving: bool = option(check_truth, True)

    settles_later: ClassVar[bool] = True
    needs_count: ClassVar[bool] = True
    varies_phases: ClassVar[bool] = True
    needs_host: ClassVar[str] = "reads the vector on the host between its phases"

    @property
    def conserves(self) -> bool:  # type: ignore[override]
        return self.conserving

    def phases(self, selector: Selector, world_size: int) -> tuple[str, ...]:
        return len(_distances(world_size)) * ("alltoall",) + ("allgather",)

    def inbound(self, density: float, entry_bytes: float, placement: Placement) -> float:
        return max(len(_distances(placement.world_size)), ring(placement)) * density * entry_bytes

    def run(self, context: ExchangeContext) -> Conversation:
        tree: dict[int, _Branch] = {}
        with context.guarded():
            if not context.is_lost:
                tree = {p: _Branch(context, member) for p, member in context.members.items()}
        for distance in _distances(context.world_size):
            place = context.rank % (2 * distance)
            sends = place == distance
            receives = place == 0 and context.rank + distance < context.world_size
            # All ranks take part in every round, because a collective waits for all of them.
            frames: list[dict[int, np.ndarray] | None] = [None] * context.world_size
            if sends:
                frames[context.rank - distance] = _encode(context, tree)
            received = yield context.to_each(frames)
            if receives:
                with context.guarded():
                    (message,) = context.read(received, [context.rank + distance])
                    for position, branch in tree.items():
                        branch.take_in(message.frames.get(position))
        last = _encode(context, tree if context.rank == 0 else {})
        root = context.read((yield Request("allgather", context.write(last, senders=1))))[0]
        context.finish()
        return {
            p: branch.finish(root.frame(p), self.conserving) if p in root.frames else BEYOND_RANGE
            for p, branch in tree.items()
        }


def _distances(world_size: int) -> list[int]:
    return [2**j for j in range((world_size - 1).bit_length())]


def _encode(context: ExchangeContext, tree: dict[int, _Branch]) -> dict[int, np.ndarray]:
    frames: dict[int, np.ndarray] = {}
    with context.guarded():
        frames = {p: branch.encode() for p, branch in tree.items() if branch.is_finite}
    return frames


class _Branch:
    """The merges of one tensor on one rank: the entries that they have kept so far, and the entries
    that they have cut. If a sum has overflowed, ``is_finite`` is False, and the rank sends no
    frame."""

    def __init__(self, context: ExchangeContext, member: Member) -> None:
        self._codec, self._kernels = member.codec, context.kernels
        self._member = member
        self._held = self._cut = Selection.empty(member.spec.numel, member.spec.accumulator)
        self.is_finite = True
        self._hold(member.selection)

    def _hold(self, total: Selection) -> None:
        self._held = largest_of(total, self._member.count, self._kernels)
        # If another entry at this index is applied, the sender of the cut entry removes it from its
        # residual. Then only this rank has the cut entry's value.
        self._cut = self._cut.plus(total.without(self._held))
        self.is_finite = is_finite(self._cut.values)

    def take_in(self, frame: np.ndarray | None) -> None:
        """Merge the entries that another rank has sent. ``frame`` is None if a sum on that rank has
        overflowed."""
        self.is_finite = self.is_finite and frame is not None
        if frame is not None and self.is_finite:
            total = self._held.plus(self._decode(frame))
            self.is_finite = is_finite(total.values)
            if self.is_finite:
                self._hold(total)

    def encode(self) -> np.ndarray:
        """Return the kept entries as a frame. The codec's rounding errors are added to the cut
        entries."""
        frame: np.ndarray = self._codec.encode(self._held, self._kernels)
        if not self._codec.is_exact:
            # Go on with the values that the other ranks decode.
            passed = self._codec.decode(frame, self._kernels)
            self._cut, self._held = self._cut.plus(self._held.minus(passed)), passed
        return frame

    def finish(self, frame: np.ndarray, conserving: bool) -> Arrival:
        applied = self._decode(frame)
        # Where nothing is applied, senders keep their entries, so this rank drops the cut ones.
        left = self._member.selection.within(applied.indices)
        returned = self._cut.within(applied.indices) if conserving else None
        return Arrival(((slice(0, applied.numel), applied),), left, returned)

    def _decode(self, frame: np.ndarray) -> Selection:
        return self._member.decode(frame, self._member.spec.numel, self._kernels)
