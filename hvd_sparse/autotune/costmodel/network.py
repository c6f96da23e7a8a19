"""What collectives cost on a network of any number of ranks: a described one, or one that was
measured on a few."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

from hvd_sparse.autotune.costmodel.costs import SUMS, Line, MeasuredWire, Work
from hvd_sparse.checks import check_choice, check_number, check_whole
from hvd_sparse.collectives.topology import Placement, in_nodes_of

CALL_S = 1e-3
"""What a collective takes until the ranks have agreed on it: a cycle of Horovod's."""
HOPS = ("ring", "tree")


class Wire(Protocol):
    """Lines of collectives, over the bytes that a node receives: a ``Network``, or a
    ``costs.MeasuredWire``."""

    def line(self, kind: str, placement: Placement) -> Line:
        """Of "allgather", "allreduce" or "alltoall" among all ranks."""

    def local_line(self, placement: Placement) -> Line:
        """Of an alltoall inside every node, over the bytes that a rank receives."""


@dataclass(frozen=True)
class Network:
    """Links of one speed between nodes, and of another inside them.

        start = call_s + hops * latency;  a ring passes every rank, a tree as many as the logarithm;
        an allreduce goes
                twice, and the messages of an alltoall are all under way at once: one hop
        seconds a byte = 8 / bandwidth

    Parameters
    ----------
    bandwidth_bit_s : of a node's link, bit/s
    latency_s : of a message between nodes
    ranks_per_node : consecutive ranks share a node
    local_bandwidth_bit_s, local_latency_s : inside a node, of each rank
    call_s : what Horovod takes to agree on a collective, before anything moves
    hops : "ring", which Gloo's collectives are, or "tree"
    """

    bandwidth_bit_s: float
    latency_s: float
    ranks_per_node: int = 1
    local_bandwidth_bit_s: float = 100e9
    local_latency_s: float = 5e-6
    call_s: float = CALL_S
    hops: str = "ring"

    def __post_init__(self) -> None:
        for name in ("bandwidth_bit_s", "local_bandwidth_bit_s"):
            check_number(getattr(self, name), f"{name} of Network", 0)
        for name in ("latency_s", "local_latency_s", "call_s"):
            check_number(
                getattr(self, name), f"{name} of Network", -1e-300, remedy="seconds, 0 or more"
            )
        check_whole(self.ranks_per_node, "ranks_per_node of Network", 1)
        check_choice(self.hops, "hops of Network", HOPS)

    def placement(self, world_size: int) -> Placement:
        """Where the ranks are.  If all share one node, each counts as a node, whose link is the
        local one."""
        check_whole(world_size, "world_size", 1)
        return in_nodes_of(
            1 if world_size <= self.ranks_per_node else self.ranks_per_node, 0, world_size
        )

    def line(self, kind: str, placement: Placement) -> Line:
        """Of a collective among all ranks."""
        nodes, per_node = placement.node_count, _per_node(placement)
        between = (self.latency_s, self.bandwidth_bit_s)
        if placement.world_size <= self.ranks_per_node:
            between = (self.local_latency_s, self.local_bandwidth_bit_s)
        start_s = (
            self._hops(nodes) * between[0]
            + self._inner_hops(nodes, per_node) * self.local_latency_s
        )
        if kind == "alltoall":
            start_s = between[0]
        return Line(self.call_s + (2 if kind in SUMS else 1) * start_s, 8 / between[1])

    def local_line(self, placement: Placement) -> Line:
        """Of an alltoall inside every node."""
        return Line(self.call_s + self.local_latency_s, 8 / self.local_bandwidth_bit_s)

    def _hops(self, ranks: int) -> int:
        return count_hops(ranks, self.hops)

    def _inner_hops(self, nodes: int, per_node: int) -> int:
        """A ring enters every node, and passes all of its ranks."""
        return nodes * (per_node - 1) if self.hops == "ring" else self._hops(per_node)


@dataclass(frozen=True)
class MeasuredNetwork:
    """Lines that were measured on some ranks, each a node of its own, for any number of ranks.

    On as many ranks the lines themselves.  On others a byte takes as long, and of a start the part
    that grows with the number of ranks is taken from the formulas of ``Network``: an allreduce goes
    around twice, so that what it starts later than an allgather is the latency of the hops of once
    around.

    Parameters
    ----------
    lines : of "allgather", "allreduce" and "alltoall", over the bytes that a rank receives
    world_size : on how many ranks they were measured; None where nobody knows: they are then taken
        for every number
    hops : "ring" or "tree", as of ``Network``
    """

    lines: Mapping[str, Line]
    world_size: int | None = None
    hops: str = "ring"
    ranks_per_node: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.world_size is not None:
            check_whole(self.world_size, "world_size of MeasuredNetwork", 2)
        check_choice(self.hops, "hops of MeasuredNetwork", HOPS)

    @property
    def latency_s(self) -> float:
        """Of a hop; 0 where it is less than the noise of what was measured."""
        if self.world_size is None or not {"allreduce", "allgather"} <= set(self.lines):
            return 0.0
        later_s = self.lines["allreduce"].start_s - self.lines["allgather"].start_s
        return max(0.0, later_s) / count_hops(self.world_size, self.hops)

    def placement(self, world_size: int) -> Placement:
        """Every rank on a node of its own."""
        check_whole(world_size, "world_size", 1)
        return in_nodes_of(1, 0, world_size)

    def line(self, kind: str, placement: Placement) -> Line:
        """Of a collective among all ranks; InvalidOption for one that was not measured."""
        measured = MeasuredWire(self.lines).line(kind, placement)
        if self.world_size is None or kind == "alltoall":
            return measured
        more = count_hops(placement.world_size, self.hops) - count_hops(self.world_size, self.hops)
        passes = 2 if kind in SUMS else 1
        return Line(max(0.0, measured.start_s + passes * more * self.latency_s), measured.byte_s)

    def local_line(self, placement: Placement) -> Line:
        """Of an alltoall inside every node."""
        return MeasuredWire(self.lines).local_line(placement)


def count_hops(ranks: int, hops: str) -> int:
    """Ranks that a collective passes, one after the other."""
    return ranks - 1 if hops == "ring" else math.ceil(math.log2(ranks))


def _per_node(placement: Placement) -> int:
    return -(-placement.world_size // placement.node_count)


@dataclass(frozen=True)
class Setting:
    """Where a step runs.

    Attributes
    ----------
    placement : the node of every rank
    wire : what collectives cost there
    work : what selecting and coding cost
    """

    placement: Placement
    wire: Wire
    work: Work

    @classmethod
    def on(cls, network: Network | MeasuredNetwork, world_size: int, work: Work) -> Setting:
        """So many ranks on a network."""
        return cls(network.placement(world_size), network, work)
