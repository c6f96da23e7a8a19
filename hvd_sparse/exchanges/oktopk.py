from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, TypedDict, cast

import numpy as np

from hvd_sparse.checks import check_number, check_whole, option
from hvd_sparse.collectives.contract import Placement, Request
from hvd_sparse.exchanges.context import BEYOND_RANGE, Arrival, ExchangeContext, Member
from hvd_sparse.exchanges.contract import Conversation, Exchange, ring
from hvd_sparse.kernels.arrays import is_finite
from hvd_sparse.registry import EXCHANGES
from hvd_sparse.selectors.contract import Selector, largest_of
from hvd_sparse.types import Selection
from hvd_sparse.wire.message import Message

HIGH, LOW = 4 / 3, 2 / 3
"""Bounds of count / k, where count is a step's number of sent sums. Outside these bounds, the
threshold of the next step is adjusted."""


@EXCHANGES.register("oktopk")
@dataclass(frozen=True)
class OkTopK(Exchange):
    """Divide a tensor into regions, add up each region on one rank, its owner, and send all ranks
    the k largest sums.

        alltoall    every rank's entries go to the owners of their regions, which add them up in
                    rank order
        allgather   the owners' largest sums go to all ranks
        received:   about k (N - 1) / N entries, then at most slack * k; with slack 2 less than 3 k
                    entries, which are 3 k indices and 3 k values, for any N

    An entry is removed from a rank's residual only if its index is among the applied sums.

    Parameters
    ----------
    period : steps between exact evaluations of the k-th largest sum, which gives the threshold for
        the sums of the next steps; 1 makes every step exact
    drift : factor, 1 or more. After a step without exact evaluation, the threshold is multiplied by
        ``drift`` if the step sent more than 4/3 k sums, and divided by it if fewer than 2/3 k
    slack : factor, 1 or more; an owner sends at most slack * k / regions entries, which bounds the
        received bytes
    least_entries : smallest number of the k entries that a region should have on average, which
        bounds the number of regions of a small tensor

    Notes
    -----
    Regions have equal lengths on the first step. Later, each region has an equal share of the
    entries that the previous step applied. All ranks know these entries, so they agree on the
    regions without a collective. The owner of the first region depends on the tensor's position
    among the registered tensors, so that the work is spread over the ranks. Checkpoints save the
    threshold and the regions, which are the same on all ranks.

    Paper: li2022oktopk.  Departs: regions follow the applied entries, while the paper finds them by
    an allreduce over the ranks' own entries; ``slack`` replaces the paper's balancing, so an exact
    step is exact only if no owner has more of the k entries than ``slack`` allows; sums equal to
    the threshold are sent (``>=``), so that the k-th entry is kept; indices are sent as integers;
    the selector computes the local threshold.
    """

    period: int = option(check_whole, 32, least=1)
    drift: float = option(check_number, 1.008, low=1, with_low=True)
    slack: float = option(check_number, 2.0, low=1, with_low=True)
    least_entries: int = option(check_whole, 4, least=1)

    settles_later: ClassVar[bool] = True
    needs_count: ClassVar[bool] = True
    needs_host: ClassVar[str] = "reads the vector on the host between its phases"

    def phases(self, selector: Selector, world_size: int) -> tuple[str, ...]:
        return ("alltoall", "allgather")

    def inbound(self, density: float, entry_bytes: float, placement: Placement) -> float:
        inside = (placement.world_size // placement.node_count - 1) / placement.world_size
        ranks = placement.world_size / placement.node_count
        factor = ranks * (ring(placement) - inside) + self.slack * ring(placement)
        return factor * density * entry_bytes

    def run(self, context: ExchangeContext) -> Conversation:
        plans: dict[int, _Plan] = {}
        parts: list[dict[int, np.ndarray]] = [{} for _ in range(context.world_size)]
        with context.guarded():
            if not context.is_lost:
                plans = {p: _Plan(self, context, member) for p, member in context.members.items()}
                for rank, part in enumerate(parts):
                    part |= {
                        p: plan.encode(rank) for p, plan in plans.items() if rank in plan.regions
                    }
        received = yield context.to_each(parts)
        reduced: dict[int, np.ndarray] = {}
        with context.guarded():
            arrived = context.read(received)
            owned = {p: plan for p, plan in plans.items() if context.rank in plan.regions}
            sums = {p: plan.reduce(arrived) for p, plan in owned.items()}
            reduced = {p: frame for p, frame in sums.items() if frame is not None}
        gathered = yield Request("allgather", context.write(reduced))
        arrived = context.read(gathered)
        context.finish()
        return {p: plan.finish(arrived) for p, plan in plans.items()}


class _Agreed(TypedDict):
    """A tensor's state after a step, which the exchange returns as the memo for the tensor's next
    step; the same on all ranks.

    threshold : magnitude that a sum must reach to be sent
    count : k of the step in which the threshold was computed
    age : number of steps since the last exact evaluation of the k-th largest sum
    edges : the first index of each region, and the end of the last region
    """

    threshold: float
    count: int
    age: int
    edges: list[int]


class _Plan:
    """One tensor in one step: its regions, their owners, and the threshold that sums must reach to
    be sent."""

    def __init__(self, options: OkTopK, context: ExchangeContext, member: Member) -> None:
        self._options, self._member, self._rank = options, member, context.rank
        self._kernels, self._codec = context.kernels, member.codec
        numel = member.spec.numel
        memo = cast("_Agreed | None", member.memo)
        regions = max(1, min(context.world_size, member.count // options.least_entries))
        sends_all = member.count == numel
        equal = [numel * j // regions for j in range(regions + 1)]
        if memo is None:
            memo = {"threshold": 0.0, "count": 0, "age": 0, "edges": equal}
        self._threshold, self._age = memo["threshold"], memo["age"]
        self._edges = edges = memo["edges"] if len(memo["edges"]) == regions + 1 else equal
        # If k has changed, the threshold belongs to the old k, so the step is exact.
        has_old_k = memo["count"] != member.count
        self.is_exact_step = sends_all or has_old_k or memo["age"] >= options.period
        # The regions by owner, in ascending order. The first owner depends on the position, so that
        # small tensors, with few regions, do not all have the same owners.
        owners = [(member.position + j) % context.world_size for j in range(regions)]
        self.regions = dict(zip(owners, map(slice, edges, edges[1:])))
        most = numel if sends_all else options.slack * member.count / regions
        self._most = math.ceil(min(numel, most))
        self._rounding = Selection.empty(numel, member.spec.accumulator)

    def encode(self, rank: int) -> np.ndarray:
        region = self.regions[rank]
        return self._pass_on(self._member.selection.region(region), region)

    def _pass_on(self, selection: Selection, region: slice) -> np.ndarray:
        """Return a region's selected entries as a frame. If the codec is lossy, note its rounding
        errors for ``finish``, which returns them to the residual."""
        frame: np.ndarray = self._codec.encode(selection, self._kernels)
        if not self._codec.is_exact:
            lost = selection.minus(self._codec.decode(frame, self._kernels))
            there = Selection.joined([(region, lost)], self._member.spec.numel)
            self._rounding = self._rounding.plus(there)
        return frame

    def reduce(self, messages: list[Message]) -> np.ndarray | None:
        """Add up the entries of this rank's region in rank order. Return the largest sums as a
        frame, or None if a sum has overflowed."""
        position, region = self._member.position, self.regions[self._rank]
        total = np.zeros(region.stop - region.start, self._member.spec.accumulator)
        for message in messages:
            entries = self._member.decode(message.frame(position), total.size, self._kernels)
            with np.errstate(over="ignore"):  # checked below
                total[entries.indices] += entries.values
        if not is_finite(total):
            return None
        if self.is_exact_step:
            kept = self._kernels.take_largest(total, self._most)
        else:
            kept = self._kernels.take_at_least(total, self._threshold)
            kept = largest_of(kept, self._most, self._kernels) if kept.count > self._most else kept
        return self._pass_on(kept, region)

    def finish(self, messages: list[Message]) -> Arrival:
        numel, position = self._member.spec.numel, self._member.position
        if any(position not in messages[owner].frames for owner in self.regions):
            return BEYOND_RANGE
        parts = []
        for owner, region in self.regions.items():
            frame = messages[owner].frame(position)
            entries = self._member.decode(frame, region.stop - region.start, self._kernels)
            parts.append((region, entries))
        applied = Selection.joined(parts, numel)
        if self.is_exact_step:  # the owners may have sent more than k in total
            applied = largest_of(applied, self._member.count, self._kernels)
        left = self._member.selection.within(applied.indices)
        returned = None if self._codec.is_exact else self._rounding.within(applied.indices)
        return Arrival(((slice(0, numel), applied),), left, returned, self._memo(applied))

    def _memo(self, applied: Selection) -> _Agreed | None:
        if not applied.count:
            return None
        threshold, count, drift = self._threshold, self._member.count, self._options.drift
        if self.is_exact_step:
            threshold = float(np.abs(applied.values).min())
        elif applied.count > HIGH * count:
            threshold *= drift
        elif applied.count < LOW * count:
            threshold /= drift
        # Give regions equally many applied entries; those of the next step are spread similarly.
        regions, edges = len(self.regions), self._edges
        if applied.count >= regions:
            inner = [int(applied.indices[j * applied.count // regions]) for j in range(1, regions)]
            edges = [0, *inner, self._member.spec.numel]
        age = 1 if self.is_exact_step else self._age + 1
        return {"threshold": threshold, "count": count, "age": age, "edges": edges}
