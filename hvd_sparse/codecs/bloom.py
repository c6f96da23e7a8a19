"""DeepReduce's Bloom filter, policy P0: indices as a filter, and values for all that pass it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hvd_sparse.checks import check_number
from hvd_sparse.codecs._bits import unpack
from hvd_sparse.codecs._valued import ValuedCodec
from hvd_sparse.codecs._values import code_bits, values_bytes
from hvd_sparse.core.kernels import packing
from hvd_sparse.core.kernels.packing import Packers
from hvd_sparse.core.wire.frame import HEADER_BYTES, need, need_ascending
from hvd_sparse.registry import CODECS
from hvd_sparse.types import Selection

MEMBERS_BYTES = 4
BITS_PER_HASH = 1_442_695_041
"""Bits of a filter a member and hash: 1 / ln 2, in billionths."""

CHUNK = 1 << 16
"""Entries of the tensor that the filter is asked for at a time."""

RAREST = 1 << 16
"""Entries a member above which a list of the members is sent: a filter would cost more."""


@dataclass(frozen=True)
class BloomSelection(Selection):
    """A selection that holds every entry that passes the filter of some of its entries.

    Attributes
    ----------
    members : how many entries the filter was made for
    """

    members: int


@CODECS.register("bloom")
@dataclass(frozen=True)
class Bloom(ValuedCodec):
    """Send a Bloom filter of the indices, and the value of every entry that passes it.

        h hashes, the smallest h with false_positives * members * 2^h >= numel
        m = ceil(members * h / ln 2) bits
        body: uint32 members; the filter, ceil(m / 8) bytes (or, for less than one member in 65,536
              entries, the members' uint32 indices); values [count] (``values``)

    Parameters
    ----------
    values : "float32", exact, 4 bytes (8 for float64); "bfloat16" or "float16", 2 bytes; "int8", 1
        byte
    false_positives : float in (0, 1): entries sent beyond those chosen, over those chosen, at most,
        on average

    Notes
    -----
    The sender asks the filter too and sends the true values of what passes by mistake
    (``complete``), so the receivers get no wrong value, and the residual is cleared wherever a
    value was sent.

    Cost: every entry of the tensor is hashed about twice, each way: 10 to 20 ns an entry of the
    *tensor*. In bytes and in time ``golomb`` is better at every density; this is here to compare
    with.

    Paper: xu2021deepreduce.  Departs: the rate of false positives is a power of two, so that
    nothing about it is sent.
    """

    false_positives: float = 0.1

    paper: ClassVar[str | None] = "xu2021deepreduce"
    number: ClassVar[int | None] = 12
    keeps_indices: ClassVar[bool] = False
    has_fixed_size: ClassVar[bool] = False
    needs_host: ClassVar[str] = "sends entries that the selector did not choose"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self.false_positives, "false_positives of Bloom", 0, 1)

    def complete(self, selection: Selection, accumulated: np.ndarray | None) -> BloomSelection:
        if isinstance(selection, BloomSelection):
            return selection
        numel, indices = selection.numel, selection.indices
        passing = indices
        if _is_filtered(indices.size, numel):
            bits, hashes = self._size(indices.size, numel)
            passing = _passing(_filter(indices, bits, hashes), hashes, numel)
        if accumulated is not None:
            values = accumulated[passing].astype(selection.values.dtype, copy=False)
        else:
            values = np.zeros(passing.size, selection.values.dtype)
        # Selectors may send other values than those accumulated.
        values[np.searchsorted(passing, indices)] = selection.values
        return BloomSelection(passing, values, numel, selection.count)

    def encode(self, selection: Selection, kernels: Packers = packing) -> np.ndarray:
        return super().encode(self.complete(selection, None), kernels)

    def encode_indices(self, selection: Selection, kernels: Packers) -> list[np.ndarray]:
        members = selection.members if isinstance(selection, BloomSelection) else selection.count
        head = np.array([members], "<u4")
        if not _is_filtered(members, selection.numel):
            return [head, selection.indices.astype("<u4", copy=False)]
        bits, hashes = self._size(members, selection.numel)
        # The filter of all that passes is the filter of its members: what passes sets no bit that
        # was not set.
        return [head, np.packbits(_filter(selection.indices, bits, hashes), bitorder="little")]

    def decode(self, buffer: np.ndarray, kernels: Packers = packing) -> BloomSelection:
        selection = super().decode(buffer, kernels)
        members = int(buffer[HEADER_BYTES : HEADER_BYTES + MEMBERS_BYTES].view("<u4")[0])
        return BloomSelection(selection.indices, selection.values, selection.numel, members)

    def decode_indices(
        self, body: np.ndarray, count: int, numel: int, kernels: Packers
    ) -> np.ndarray:
        need(body.size >= MEMBERS_BYTES, f"{body.size} bytes are too few for a filter")
        members, body = int(body[:MEMBERS_BYTES].view("<u4")[0]), body[MEMBERS_BYTES:]
        need(
            members <= count and (members > 0 or count == 0),
            f"{count} entries pass a filter of {members}",
        )
        if not _is_filtered(members, numel):
            need(
                members == count and body.size == 4 * count,
                f"{count} indices cannot fill {body.size} bytes",
            )
            need_ascending(body.view("<u4"), numel)
            return body.view("<u4")
        bits, hashes = self._size(members, numel)
        need(
            body.size == -(-bits // 8),
            f"a filter of {members} entries cannot fill {body.size} bytes",
        )
        is_set = unpack(body, 1, bits).view(np.bool_)
        indices = _passing(is_set, hashes, numel, at_most=count)
        need(
            indices.size == count,
            f"another number of entries than the {count} announced passes the filter",
        )
        # Else several payloads would mean one selection, of which a writer gives one.
        need(
            np.array_equal(_filter(indices, bits, hashes), is_set),
            "a filter has bits that no entry sets",
        )
        return indices

    def index_bytes(self, count: int, numel: int) -> float:
        """Return the bytes of a filter for ``count`` members, without the values that pass by
        mistake."""
        if not _is_filtered(count, numel):
            return MEMBERS_BYTES + 4 * count
        return MEMBERS_BYTES + -(-self._size(count, numel)[0] // 8)

    def body_bytes(self, count: int, numel: int, value_bytes: int = 4) -> float:
        mistakes = 0.0
        if _is_filtered(count, numel):
            mistakes = (numel - count) * 0.5 ** self._size(count, numel)[1]
        values = (
            values_bytes(count, self.values, value_bytes)
            + mistakes * code_bits(self.values, value_bytes) / 8
        )
        return self.index_bytes(count, numel) + values

    def _size(self, members: int, numel: int) -> tuple[int, int]:
        """Return the bits of the filter and the number of hashes."""
        hashes = 1
        while self.false_positives * members * (1 << hashes) < numel:
            hashes += 1
        return -(-members * hashes * BITS_PER_HASH // 10**9), hashes


def _is_filtered(members: int, numel: int) -> bool:
    return 0 < numel <= members * RAREST


def _places(indices: np.ndarray, number: int, bits: int) -> np.ndarray:
    """Return the bits of the filter at which a hash function puts indices.

    The hash is murmur3's last mixing step, scaled to the filter.
    """
    mixed = indices + np.uint32((number + 1) * 0x9E3779B9 & 0xFFFFFFFF)
    mixed ^= mixed >> np.uint32(16)
    mixed *= np.uint32(0x85EBCA6B)
    mixed ^= mixed >> np.uint32(13)
    mixed *= np.uint32(0xC2B2AE35)
    mixed ^= mixed >> np.uint32(16)
    return (mixed.astype(np.uint64) * np.uint64(bits)) >> np.uint64(32)


def _filter(indices: np.ndarray, bits: int, hashes: int) -> np.ndarray:
    """Return bool [bits]: the filter of some indices."""
    is_set = np.zeros(bits, np.bool_)
    for number in range(hashes):
        is_set[_places(indices, number, bits)] = True
    return is_set


def _passing(is_set: np.ndarray, hashes: int, numel: int, at_most: int | None = None) -> np.ndarray:
    """Return, as uint32, all entries of a tensor that pass a filter; stop once they are too
    many."""
    found, total = [np.empty(0, np.uint32)], 0
    for start in range(0, numel, CHUNK):
        candidates = np.arange(start, min(start + CHUNK, numel), dtype=np.uint32)
        for number in range(hashes):
            candidates = candidates[is_set[_places(candidates, number, is_set.size)]]
        found.append(candidates)
        total += candidates.size
        if at_most is not None and total > at_most:
            break
    return np.concatenate(found)
