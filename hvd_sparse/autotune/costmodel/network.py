"""Networks: costs of collectives on any number of ranks, described or measured on a few."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

from hvd_sparse.autotune.costmodel.costs import SUMS, Line, MeasuredWire, Work
from hvd_sparse.checks import check_choice, check_number, check_whole
from hvd_sparse.collectives.topology import Placement, in_nodes_of

CALL_S = 1e-3
"""Seconds until the ranks have agreed on a collective: a cycle of Horovod's."""
HOPS = ("ring", "tree")


class Wire(Protocol):
    """Costs of collectives over the bytes that a node receives.

    A ``Network``, a ``MeasuredNetwork`` or a ``costs.MeasuredWire``.
    """

    def line(self, kind: str, placement: Placement) -> Line:
        """Return the cost of "allgather", "allreduce" or "alltoall" among all ranks."""

    def local_line(self, placement: Placement) -> Line:
        """Return the cost of an alltoall inside every node."""


@dataclass(frozen=True)
class Network:
    """A network with links of one speed between nodes, and of another inside them.

        start = call_s + hops * latency
        seconds a byte = 8 / bandwidth

    A ring's hops pass every rank, a tree's as many as the logarithm.  An allreduce goes around
    twice.  The messages of an alltoall are all under way at once: one hop.

    Parameters
    ----------
    bandwidth_bit_s : bandwidth of a node's link, bit/s
    latency_s : seconds of a message between nodes
    ranks_per_node : consecutive ranks that share a node
    local_bandwidth_bit_s, local_latency_s : the same of each rank's link inside a node
    call_s : seconds that Horovod takes to agree on a collective, before anything moves
    hops : "ring", as Gloo's collectives are, or "tree"

    Raises
    ------
    InvalidOption
        If a value is out of its range.
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
        """Return the node of every rank.

        If all ranks share one node, each counts as a node, whose link is the local one.
        """
        check_whole(world_size, "world_size", 1)
        return in_nodes_of(
            1 if world_size <= self.ranks_per_node else self.ranks_per_node, 0, world_size
        )

    def line(self, kind: str, placement: Placement) -> Line:
        """Return the cost of a collective among all ranks."""
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
        """Return the cost of an alltoall inside every node."""
        return Line(self.call_s + self.local_latency_s, 8 / self.local_bandwidth_bit_s)

    def _hops(self, ranks: int) -> int:
        return count_hops(ranks, self.hops)

    def _inner_hops(self, nodes: int, per_node: int) -> int:
        """Return the hops inside nodes: a ring enters every node, and passes all of its ranks."""
        return nodes * (per_node - 1) if self.hops == "ring" else self._hops(per_node)


@dataclass(frozen=True)
class MeasuredNetwork:
    """A network whose costs were measured on some ranks, each on a node of its own.

    On as many ranks the measured costs hold.  On another number a byte takes as long, and the start
    changes with the hops, as in ``Network``.  An allreduce goes around twice, so the seconds that
    it starts later than an allgather are the latency of going around once.

    Parameters
    ----------
    lines : costs of "allgather", "allreduce" and "alltoall", over the bytes that a rank receives
    world_size : number of ranks on which they were measured; None where that is unknown: they then
        hold for every number
    hops : "ring" or "tree", as of ``Network``

    Raises
    ------
    InvalidOption
        If a value is out of its range.
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
        """Return the seconds of a hop; 0 where the measurements do not tell."""
        if self.world_size is None or not {"allreduce", "allgather"} <= set(self.lines):
            return 0.0
        later_s = self.lines["allreduce"].start_s - self.lines["allgather"].start_s
        return max(0.0, later_s) / count_hops(self.world_size, self.hops)

    def placement(self, world_size: int) -> Placement:
        """Return the node of every rank: one of its own."""
        check_whole(world_size, "world_size", 1)
        return in_nodes_of(1, 0, world_size)

    def line(self, kind: str, placement: Placement) -> Line:
        """Return the cost of a collective among all ranks.

        Raises
        ------
        InvalidOption
            If the kind was not measured.
        """
        measured = MeasuredWire(self.lines).line(kind, placement)
        if self.world_size is None or kind == "alltoall":
            return measured
        more = count_hops(placement.world_size, self.hops) - count_hops(self.world_size, self.hops)
        passes = 2 if kind in SUMS else 1
        return Line(max(0.0, measured.start_s + passes * more * self.latency_s), measured.byte_s)

    def local_line(self, placement: Placement) -> Line:
        """Return the cost of an alltoall inside every node."""
        return MeasuredWire(self.lines).local_line(placement)


def count_hops(ranks: int, hops: str) -> int:
    """Return the number of ranks that a collective passes one after the other."""
    return ranks - 1 if hops == "ring" else math.ceil(math.log2(ranks))


def _per_node(placement: Placement) -> int:
    return -(-placement.world_size // placement.node_count)


@dataclass(frozen=True)
class Setting:
    """The ranks and costs of a step.

    Attributes
    ----------
    placement : the node of every rank
    wire : costs of collectives
    work : costs of computing
    """

    placement: Placement
    wire: Wire
    work: Work

    @classmethod
    def on(cls, network: Network | MeasuredNetwork, world_size: int, work: Work) -> Setting:
        """Return the setting of ``world_size`` ranks on a network."""
        return cls(network.placement(world_size), network, work)
