"""Published constants, and our own of one processor, for plans where nothing was measured yet."""

from __future__ import annotations

from dataclasses import replace

from hvd_sparse.autotune.costmodel.costs import Line, Work
from hvd_sparse.checks import check_whole
from hvd_sparse.codecs.contract import Codec
from hvd_sparse.errors import UnknownName

NETWORKS: dict[str, dict[int, tuple[float, float]]] = {
    "omgs-1gbe": {2: (1.6e-3, 1e-8), 4: (2.7e-3, 1.3e-8), 8: (4e-3, 1.5e-8), 16: (1.1e-2, 1.7e-8)},
    "mg-wfbp-10gbe": {8: (5.23e-4, 8.57e-10), 16: (9.08e-4, 7.40e-10)},
    "mg-wfbp-56gb": {8: (9.75e-5, 3.06e-10), 16: (2.36e-4, 4.06e-10)},
}
"""Start in seconds and seconds a byte, by number of ranks, of whole collectives: the tables in the
code of OMGS-SGD (allgathers over 1 Gbit/s; shi2020mgs) and of MG-WFBP (allreduces over 10 Gbit/s
Ethernet and 56 Gbit/s InfiniBand; shi2019mgwfbp)."""

P102_100 = Work(sort_s=2.18896957e-10)
"""Top-k on an NVIDIA P102-100, from the code of OMGS-SGD: s x log2 x."""

CPU = Work(call_s=7e-5, entry_s=0.66e-9, sent_s=20e-9, dense_s=0.37e-9, received_s=7e-9)
"""``ldte_bs`` with ``index_value`` and rollback by the compiled engine, one thread of an Intel Xeon
with AVX-512, between densities of 0.001 and 0.01: docs/results/selecting.md.  ``sent_s`` is mostly
selecting, which takes longer the more is sent."""

CODING_S: dict[str, tuple[float, float]] = {
    "index_value": (0.9e-9, 1.8e-9),
    "run16": (6.0e-9, 6.4e-9),
    "block16": (1.4e-9, 2.1e-9),
    "golomb": (11.8e-9, 21.7e-9),
    "bitmap": (142e-9, 244e-9),
}
"""Seconds to encode and to decode an entry, at density 0.001 with the codec's default values:
docs/results/codecs.md."""


def network(name: str, world_size: int) -> Line:
    """Return the cost of a collective by a published table, for any number of ranks.

    Between and beyond the numbers of ranks in the table it is interpolated linearly, which is a
    guess: a measured line is better.

    Parameters
    ----------
    name : key of ``NETWORKS``
    world_size : 2 or more

    Raises
    ------
    UnknownName
        If there is no such table; the message lists them.
    """
    check_whole(world_size, "world_size", 2)
    if name not in NETWORKS:
        raise UnknownName(f"no network is called {name!r}; there are: {', '.join(NETWORKS)}")
    table = sorted(NETWORKS[name].items())
    later = [position for position in range(1, len(table) - 1) if world_size > table[position][0]]
    low, high = table[len(later) : len(later) + 2]
    part = (world_size - low[0]) / (high[0] - low[0])
    start_s, byte_s = (max(0.0, a + part * (b - a)) for a, b in zip(low[1], high[1]))
    return Line(start_s, byte_s)


def with_codec(work: Work, codec: Codec) -> Work:
    """Return the costs with another codec than ``index_value``, with which they were measured.

    The seconds that the codec takes beyond ``index_value`` are added.  A codec that was never
    measured counts as ``golomb``.
    """
    usual, other = CODING_S["index_value"], CODING_S.get(codec.id, CODING_S["golomb"])
    return replace(
        work,
        sent_s=work.sent_s + other[0] - usual[0],
        received_s=work.received_s + other[1] - usual[1],
        exchanges={id: with_codec(each, codec) for id, each in work.exchanges.items()},
    )
