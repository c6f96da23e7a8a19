"""Checks that every codec must pass."""

import itertools

import numpy as np

from hvd_sparse.errors import CorruptPayload
from hvd_sparse.types import INDEX_LIMIT, Selection
from hvd_sparse.wire.frame import HEADER_BYTES

ENTRY_BY_ENTRY = ("bitmap", "dense", "one_bit", "two_bit", "auto")
"""Codecs whose time depends on the number of all entries. Tests give them only small tensors."""


def selection_of(indices, numel, dtype="float32", seed=0):
    chosen = np.fromiter(indices, np.uint32)
    values = np.random.default_rng(seed).normal(size=chosen.size).astype(dtype)
    return Selection(chosen, values, numel)


def largest_numel(codec):
    if codec.id in ENTRY_BY_ENTRY:
        return 100_000
    return 2**31 if codec.id == "sign_index" else INDEX_LIMIT - 1


def check_round_trip(codec, selection):
    payload = codec.encode(selection)
    assert payload.dtype == np.uint8 and payload.ndim == 1
    decoded = codec.decode(payload)
    check_form(decoded, selection)
    if codec.is_exact:
        assert decoded.indices.tolist() == selection.indices.tolist()
        assert decoded.values.tobytes() == selection.values.tobytes()
    check_no_entry_is_made_up(codec, selection, decoded)
    assert codec.encode(decoded).tobytes() == payload.tobytes(), (
        "what is decoded does not encode to the same bytes"
    )
    if codec.has_fixed_size:
        body_bytes = codec.body_bytes(decoded.count, decoded.numel, decoded.values.dtype.itemsize)
        assert HEADER_BYTES + body_bytes == payload.size, (
            "another number of bytes than the codec says"
        )
    return payload


def check_form(decoded, selection):
    assert decoded.numel == selection.numel
    assert decoded.indices.dtype == np.uint32
    assert decoded.values.dtype == selection.values.dtype
    indices = decoded.indices.tolist()
    assert all(a < b for a, b in itertools.pairwise(indices)) and all(
        i < decoded.numel for i in indices
    )
    assert np.isfinite(decoded.values).all()


def check_no_entry_is_made_up(codec, selection, decoded):
    values = dict(zip(selection.indices.tolist(), selection.values.tolist()))
    if not codec.sends_zeros:
        values = {index: value for index, value in values.items() if value != 0}
    got = dict(zip(decoded.indices.tolist(), decoded.values.tolist()))
    assert set(got) == set(values)
    largest = max((abs(value) for value in values.values()), default=0.0)
    for index, value in got.items():
        meant = values.get(index, 0.0)
        assert value == 0 or (value > 0) == (meant > 0), f"{meant} was sent as {value}"
        assert abs(value) <= largest * (1 + 2**-8) + 2**-24, (
            f"{value} is larger than anything that was selected"
        )


def check_refuses(codec, buffer, what):
    try:
        selection = codec.decode(buffer)
    except CorruptPayload:
        return
    raise AssertionError(f"{what} was read as {selection}")


def check_refuses_damage(codec, selection):
    payload = codec.encode(selection)
    for size in range(payload.size):
        check_refuses(codec, payload[:size], f"a payload cut to {size} bytes")
    for position in range(payload.size):
        for mask in (1, 2, 4, 8, 16, 32, 64, 128, 255):
            flipped = payload.copy()
            flipped[position] ^= mask
            check_refuses(codec, flipped, f"byte {position} changed by {mask:#x}")
    check_refuses(codec, np.append(payload, np.uint8(0)), "a payload with a byte behind it")
    check_refuses(codec, np.concatenate([payload, payload]), "two payloads")


EDGES = (
    ((), 0),
    ((), 7),
    ((0,), 1),
    ((0,), 1000),
    ((999,), 1000),
    (range(1000), 1000),
    ((0, 65_535, 65_536, 98_303), 98_304),  # gaps around 16 bits
    (range(65_536), 65_537),  # a full block
)


def check_edges(codec, dtype):
    longest = largest_numel(codec)
    last = (longest // 2 - 1, longest // 2, longest - 1), longest
    for indices, numel in (*EDGES, last):
        check_round_trip(codec, selection_of(indices, numel, dtype))


def check_codec(codec):
    for dtype in ("float32", "float64"):
        check_edges(codec, dtype)
    check_refuses_damage(codec, selection_of((1, 5), 9))
