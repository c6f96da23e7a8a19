"""Ok-Topk: every rank sums a region of the tensor, and passes on what is large in it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from hvd_sparse.checks import check_number, check_whole
from hvd_sparse.collectives.contract import AllGather, AllToAll
from hvd_sparse.collectives.topology import Placement
from hvd_sparse.core.wire.message import Message
from hvd_sparse.exchanges._entries import join, merge, region_of, restrict, subtract
from hvd_sparse.exchanges.context import Arrival, Item, Parcel
from hvd_sparse.exchanges.contract import Conversation, Exchange, ring
from hvd_sparse.registry import EXCHANGES
from hvd_sparse.selectors._candidates import largest_of
from hvd_sparse.selectors.contract import Selector
from hvd_sparse.types import Selection

HIGH, LOW = 4 / 3, 2 / 3
"""Parts of k outside which the reused threshold drifts."""


@EXCHANGES.register("oktopk")
@dataclass(frozen=True)
class OkTopK(Exchange):
    """Sum region by region, then share the k largest sums.

        alltoall    every rank's entries go to the owners of their regions, who add them up in rank order
        allgather   the owners' largest sums go to all
        received:   about k (N - 1) / N entries, then at most slack * k: less than 3 k entries, 6 k words, for any N

    Only what is applied leaves a rank: its entries at indices that are among the k stay applied,
    all others are kept back.

    Parameters
    ----------
    period : steps between exact evaluations of the k-th largest sum; 1 makes every step exact
    drift : factor, 1 or more, by which the threshold moves in between when it lets through more
        than 4/3 k or less than 2/3 k
    slack : an owner passes on at most slack * k / regions entries, 1 or more, which bounds what is
        received
    least_entries : a tensor is divided into so few regions that each can expect this many of its k
        entries

    Notes
    -----
    Regions begin at equal lengths and follow the entries that were applied last: each then held
    equally many.  All ranks know these, so that no collective is spent on it.  Which rank owns a
    region turns with the tensor's position.

    Threshold and regions are the same on all ranks, and part of their state.

    Paper: li2022oktopk.  Departs: regions follow the applied entries rather than an allreduce of
    the ranks' own; ``slack`` takes the place of the paper's balancing; an exact step is exact when
    no owner has more of the k than its slack; ``>=`` keeps the k-th entry; indices travel as
    integers; the local threshold is the selector's business.
    """

    period: int = 32
    drift: float = 1.008
    slack: float = 2.0
    least_entries: int = 4

    paper: ClassVar[str | None] = "li2022oktopk"
    settles_later: ClassVar[bool] = True
    sums_again: ClassVar[bool] = True
    needs_count: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_whole(self.period, "period of OkTopK", 1)
        check_number(self.drift, "drift of OkTopK", 1 - 1e-9, remedy="a factor of 1 or more")
        check_number(self.slack, "slack of OkTopK", 1 - 1e-9, remedy="a factor of 1 or more")
        check_whole(self.least_entries, "least_entries of OkTopK", 1)

    def phases(self, selector: Selector, world_size: int) -> tuple[str, ...]:
        return ("alltoall", "allgather")

    def inbound(self, density: float, entry_bytes: float, placement: Placement) -> float:
        inside = (placement.world_size // placement.node_count - 1) / placement.world_size
        ranks = placement.world_size / placement.node_count
        return (
            (ranks * (ring(placement) - inside) + self.slack * ring(placement))
            * density
            * entry_bytes
        )

    def run(self, parcel: Parcel) -> Conversation:
        plans: dict[int, _Plan] = {}
        parts: list[dict[int, np.ndarray]] = [{} for _ in range(parcel.world_size)]
        with parcel.guarded():
            if not parcel.is_lost:
                plans = {p: _Plan(self, parcel, p, item) for p, item in parcel.items.items()}
                parts = [
                    {p: plan.encode(r) for p, plan in plans.items() if plan.owns(r)}
                    for r in range(len(parts))
                ]
        messages = [parcel.write(frames) for frames in parts]
        splits = np.array([message.size for message in messages], np.int32)
        received = yield AllToAll(np.concatenate(messages), splits)
        reduced: dict[int, np.ndarray] = {}
        with parcel.guarded():
            arrived = parcel.read(received)
            reduced = {
                p: plan.reduce(arrived) for p, plan in plans.items() if plan.owns(parcel.rank)
            }
        gathered = yield AllGather(parcel.write(reduced))
        arrived = parcel.read(gathered)
        parcel.finish()
        return {p: plan.finish(arrived) for p, plan in plans.items()}


class _Plan:
    """One tensor in one step: its regions, its threshold, and what this rank's part in them is."""

    def __init__(self, options: OkTopK, parcel: Parcel, position: int, item: Item) -> None:
        self._options, self._item, self._rank = options, item, parcel.rank
        self._kernels, self._codec = parcel.pipeline.kernels, item.codec
        numel, memo = item.spec.numel, item.state.exchange_memo
        regions = max(1, min(parcel.world_size, item.count // options.least_entries))
        sends_all = item.count == numel
        self.is_exact_step = (
            sends_all
            or memo is None
            or memo["count"] != item.count
            or memo["age"] >= options.period
        )
        same = memo is not None and len(memo["edges"]) == regions + 1
        self.edges: list[int] = (
            memo["edges"] if same else [numel * j // regions for j in range(regions + 1)]
        )
        self._threshold: float = 0.0 if memo is None else memo["threshold"]
        self._age: int = 0 if memo is None else memo["age"]
        self._owners = {(position + j) % parcel.world_size: j for j in range(regions)}
        self._most = numel if sends_all else math.ceil(options.slack * item.count / regions)
        self._rounding = Selection.empty(numel, item.spec.accumulator)

    def owns(self, rank: int) -> bool:
        return rank in self._owners

    def region(self, rank: int) -> slice:
        """What a rank sums."""
        number = self._owners[rank]
        return slice(self.edges[number], self.edges[number + 1])

    def encode(self, rank: int) -> np.ndarray:
        """This rank's entries in another's region."""
        return self._pass_on(region_of(self._item.selection, self.region(rank)), self.region(rank))

    def _pass_on(self, selection: Selection, region: slice) -> np.ndarray:
        frame: np.ndarray = self._codec.encode(selection, self._kernels)
        if not self._codec.is_exact:
            lost = subtract(selection, self._codec.decode(frame, self._kernels))
            self._rounding = merge(
                self._rounding, join([(region, lost)], self._item.spec.numel, lost.values.dtype)
            )
        return frame

    def reduce(self, messages: list[Message]) -> np.ndarray:
        """Add up this rank's region, in rank order, and keep what is large."""
        position, region = self._item.ticket.position, self.region(self._rank)
        assert position is not None
        total = np.zeros(region.stop - region.start, self._item.spec.accumulator)
        for message in messages:
            entries = self._item.checked(
                self._codec.decode(message.frame(position), self._kernels), total.size
            )
            self._kernels.scatter_add(total, entries.indices, entries.values)
        if self.is_exact_step:
            kept = self._kernels.take_largest(total, self._most)
        else:
            kept = self._kernels.take_at_least(total, self._threshold)
            kept = largest_of(kept, self._most, self._kernels) if kept.count > self._most else kept
        return self._pass_on(kept, region)

    def finish(self, messages: list[Message]) -> Arrival:
        """What is applied everywhere, what so leaves this rank, and what the next step begins
        with."""
        numel = self._item.spec.numel
        applied = join(list(self._regions(messages)), numel, self._item.spec.accumulator)
        if self.is_exact_step:
            applied = largest_of(applied, self._item.count, self._kernels)
        left = restrict(self._item.selection, applied.indices)
        returned = None if self._codec.is_exact else restrict(self._rounding, applied.indices)
        return Arrival(((slice(0, numel), applied),), left, returned, self._memo(applied))

    def _regions(self, messages: list[Message]) -> Iterator[tuple[slice, Selection]]:
        position = self._item.ticket.position
        assert position is not None
        for owner in sorted(self._owners, key=lambda rank: self._owners[rank]):
            region = self.region(owner)
            selection = self._codec.decode(messages[owner].frame(position), self._kernels)
            yield region, self._item.checked(selection, region.stop - region.start)

    def _memo(self, applied: Selection) -> dict[str, Any] | None:
        if not applied.count:
            return None
        threshold, count, drift = self._threshold, self._item.count, self._options.drift
        if self.is_exact_step:
            threshold = float(np.abs(applied.values).min())
        elif applied.count > HIGH * count:
            threshold *= drift
        elif applied.count < LOW * count:
            threshold /= drift
        regions = len(self.edges) - 1
        edges = self.edges
        if applied.count >= regions:
            inner = [int(applied.indices[j * applied.count // regions]) for j in range(1, regions)]
            edges = [0, *inner, self._item.spec.numel]
        age = 1 if self.is_exact_step else self._age + 1
        return {"threshold": threshold, "count": count, "age": age, "edges": edges}
