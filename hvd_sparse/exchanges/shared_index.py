from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hvd_sparse.codecs.contract import Codec
from hvd_sparse.collectives.contract import Placement, Request
from hvd_sparse.errors import PeerFailure, RankMismatch
from hvd_sparse.exchanges.context import Arrival, ExchangeContext, Member
from hvd_sparse.exchanges.contract import Conversation, Exchange, ring
from hvd_sparse.registry import EXCHANGES
from hvd_sparse.selectors.contract import Selector
from hvd_sparse.types import Selection
from hvd_sparse.wire.frame import read_indices, write_indices

INDEX_BYTES = 4
NOTHING = np.zeros(1, np.float32)
"""The array that each rank gives to the allreduce if all ranks know that some rank has failed."""
STEPS = 4093
"""The mark of a step, a number that ranks send to detect failures (see ``_joined``), repeats after
this many steps."""


@EXCHANGES.register("shared_index")
@dataclass(frozen=True)
class SharedIndex(Exchange):
    """Select on one rank, the leader, and allreduce all ranks' values at the indices that it
    selected.

        leader of a step:   rank step mod N
        received per rank:  4 k bytes of indices (none by the leader) and 2 (N - 1) / N * 4 k bytes
                            of values; on average 12 k (N - 1) / N bytes, for any number of ranks N

    If the selector finds the same indices on all ranks, there is no leader, and no indices are
    sent. For example, ``random_k`` with ``shared_seed`` draws the same indices on all ranks, and
    ``chunked`` selects by norms that are first summed over the ranks.

    Notes
    -----
    The sum of selections at the same indices is a selection from the sum of accumulated gradients.
    The method assumes that the ranks' vectors are so similar that the leader's indices suit all
    ranks.

    The indices are sent by an allgather in which only the leader's message has indices, because the
    root of Horovod's broadcast cannot change in a TensorFlow graph. The other ranks' messages (36
    bytes and 4 bytes per tensor) report failures. Values are summed by an allreduce in float32 or
    float64; codecs are not used.

    Paper: chen2020scalecom.
    """

    settles_later: ClassVar[bool] = True
    shares_indices: ClassVar[bool] = True
    needs_host: ClassVar[str] = "reads the vector on the host between its phases"

    def phases(self, selector: Selector, world_size: int) -> tuple[str, ...]:
        sums = 2 if selector.sums_statistics else 1
        return ("allgather",) + sums * ("allreduce",)

    def selects_on(self, rank: int, world_size: int, step: int, selector: Selector) -> bool:
        if selector.sums_statistics:
            return False
        return selector.has_shared_indices or rank == step % world_size

    def entry_bytes(self, codec: Codec, numel: int, density: float, value_bytes: int) -> float:
        return INDEX_BYTES + value_bytes

    def inbound(self, density: float, entry_bytes: float, placement: Placement) -> float:
        return ring(placement) * (2 * entry_bytes - INDEX_BYTES) * density

    def run(self, context: ExchangeContext) -> Conversation:
        members, chosen = context.members, {}
        leaders = {p: member.steps % context.world_size for p, member in members.items()}
        selectors = [member.selector for member in members.values()]
        has_leader = not any(s.has_shared_indices or s.sums_statistics for s in selectors)
        mine = {
            p: write_indices(members[p].selection)
            for p, leader in leaders.items()
            if has_leader and leader == context.rank and not context.is_lost
        }
        # This allgather runs even if there are no indices to send, because it reports failures.
        gathered = yield Request("allgather", context.write(mine, senders=1))
        with context.guarded():
            messages = context.read(gathered)
            for p, leader in leaders.items() if has_leader else ():
                chosen[p] = read_indices(messages[leader].frame(p), members[p].spec.numel)
        if context.selector.sums_statistics:
            statistics = yield Request("allreduce", _statistics(context))
            with context.guarded():
                _check_step(context, statistics)
                _choose_by(context, statistics)
        if not has_leader and not context.is_lost:
            chosen = {p: member.selection.indices for p, member in context.members.items()}
        summed = yield Request("allreduce", _values(context, chosen))
        # First raise this rank's own error, which a wrong mark in the sum would hide.
        context.finish()
        _check_step(context, summed)
        return _arrivals(context, chosen, summed)


def _joined(context: ExchangeContext, arrays: list[np.ndarray], lengths: list[int]) -> np.ndarray:
    """Return the array that this rank gives to an allreduce: ``arrays``, concatenated in their
    widest dtype, and then the step's mark (``_mark``). If this rank has failed, it gives zeros, as
    many as ``lengths``, the lengths of the other ranks' arrays, require. The sum of the marks is
    then wrong, so all ranks notice the failure. If all ranks already know of a failure, each gives
    ``NOTHING``."""
    # All ranks know of a PeerFailure, so all contribute the same single entry. If only this rank
    # has failed, its operand must be as long as the others', or the allreduce itself would fail.
    if isinstance(context.failure, PeerFailure) or not context.members:
        return NOTHING
    dtypes = [member.spec.accumulator for member in context.members.values()]
    if context.is_lost:
        arrays = [np.zeros(length, dtype) for length, dtype in zip(lengths, dtypes)]
    mark = 0 if context.is_lost else _mark(context)
    return np.concatenate([*arrays, np.array([mark], dtypes[0])])


def _mark(context: ExchangeContext) -> int:
    """Return the step's mark, a number from 1 to ``STEPS``, by which ranks notice a sum of
    different steps. The sum of the marks of up to 4,000 ranks is exact in float32."""
    return 1 + context.step % STEPS


def _check_step(context: ExchangeContext, summed: np.ndarray) -> None:
    if context.is_lost or not context.members:
        return
    if summed[-1] != context.world_size * _mark(context):
        raise RankMismatch(
            f"bucket {context.bucket}: the allreduce of step {context.step} over "
            f"{context.world_size} ranks has parts of another step or of a failed rank: look for "
            "the first error on the other ranks; if there is none, the collective has delivered "
            "data of another step"
        )


def _statistics(context: ExchangeContext) -> np.ndarray:
    members = context.members.values()
    sizes = [member.selector.measures(member.spec.numel) for member in members]
    norms: list[np.ndarray] = []
    with context.guarded():
        for member in () if context.is_lost else members:
            norms.append(member.selector.measure(member.vector, context.kernels))
    return _joined(context, norms, sizes)


def _choose_by(context: ExchangeContext, statistics: np.ndarray) -> None:
    if context.is_lost:
        return
    members = context.members.values()
    ends = np.cumsum([member.selector.measures(member.spec.numel) for member in members])
    for member, part in zip(members, np.split(statistics, ends)):
        # The sum has the widest dtype of the bucket.
        own = part.astype(member.vector.dtype, copy=False)
        member.outgoing.found = member.selector.find_by(own, member.vector, context.kernels)


def _own(member: Member, indices: np.ndarray) -> Selection:
    """Return what this rank sends at the indices: its entries, or parts of them."""
    entries = Selection(indices, member.vector[indices], member.spec.numel)
    release = member.outgoing.release
    return entries if release is None else release.of(entries)


def _values(context: ExchangeContext, chosen: dict[int, np.ndarray]) -> np.ndarray:
    sizes, values = [], []
    for position, member in context.members.items():
        count = 0 if member.density is None else member.count
        sizes.append(chosen[position].size if position in chosen else count)
    with context.guarded():
        for position, indices in () if context.is_lost else chosen.items():
            values.append(_own(context.members[position], indices).values)
    return _joined(context, values, sizes)


def _arrivals(
    context: ExchangeContext, chosen: dict[int, np.ndarray], summed: np.ndarray
) -> dict[int, Arrival]:
    """Return the exchange's result for every member: the summed entries to apply, and this rank's
    own values at the same indices, which are removed from its residual."""
    arrivals, ends = {}, np.cumsum([indices.size for indices in chosen.values()], dtype=int)
    for (position, indices), part in zip(chosen.items(), np.split(summed, ends)):
        member, numel = context.members[position], context.members[position].spec.numel
        left = _own(member, indices)
        sums = Selection(indices, part.astype(left.values.dtype, copy=False), numel)
        arrivals[position] = Arrival(((slice(0, numel), sums),), left)
        member.outgoing.entries, member.outgoing.accumulated = indices.size, None
    return arrivals
