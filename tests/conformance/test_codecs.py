"""Every codec gives selections back as they were, and reads nothing but what it wrote."""

from __future__ import annotations

import struct
import zlib

import cases
import numpy as np
import pytest
from conformance.codec_checks import check_refuses, check_refuses_damage, check_round_trip, selection_of
from hypothesis import example, given
from hypothesis import strategies as st

from hvd_sparse.errors import CorruptPayload
from hvd_sparse.registry import CODECS
from hvd_sparse.types import INDEX_LIMIT, Selection

codecs = pytest.mark.parametrize("codec", [case.create(CODECS) for case in cases.CODECS], ids=map(str, cases.CODECS))
dtypes = pytest.mark.parametrize("dtype", ["float32", "float64"])


@st.composite
def selections(draw):
    """Any selection at all: any indices, and values of any bits, NaN and -0.0 among them."""
    numel = draw(st.one_of(st.integers(1, 40), st.integers(1, INDEX_LIMIT - 1)))
    indices = sorted(draw(st.sets(st.integers(0, numel - 1), max_size=40)))
    width = draw(st.sampled_from([4, 8]))
    bits = draw(st.binary(min_size=width * len(indices), max_size=width * len(indices)))
    return Selection(np.array(indices, np.uint32), np.frombuffer(bits, f"f{width}"), numel)


@codecs
@given(selection=selections())
def test_a_selection_comes_back_bit_for_bit(codec, selection):
    check_round_trip(codec, selection)


@codecs
@dtypes
@pytest.mark.parametrize(
    ("indices", "numel"),
    [
        pytest.param((), 0, id="empty-tensor"),
        pytest.param((), 7, id="nothing-sent"),
        pytest.param((0,), 1, id="one-of-one"),
        pytest.param((0,), 1000, id="first"),
        pytest.param((999,), 1000, id="last"),
        pytest.param(range(1000), 1000, id="everything"),
        pytest.param((0, 65_535, 65_536, 131_072, 262_143), 262_144, id="gaps-around-16-bits"),
        pytest.param((2**31 - 1, 2**31, INDEX_LIMIT - 2), INDEX_LIMIT - 1, id="longest-tensor"),
    ],
)
def test_edges_of_a_tensor_come_back(codec, dtype, indices, numel):
    check_round_trip(codec, selection_of(indices, numel, dtype))


@codecs
@dtypes
@pytest.mark.parametrize("indices", [(), (3,), (0, 4, 11)], ids=str)
def test_truncations_and_changed_bytes_are_refused(codec, dtype, indices):
    check_refuses_damage(codec, selection_of(indices, 12, dtype))


@codecs
@given(foreign=st.binary(max_size=100))
@example(foreign=b"HS")
@example(foreign=bytes(32))
def test_foreign_bytes_are_refused(codec, foreign):
    check_refuses(codec, np.frombuffer(foreign, np.uint8), f"{foreign!r}")


def forged(body: bytes, *, codec=1, value_type=1, numel=10, count=1, version=1) -> np.ndarray:
    """A frame around any body, with a checksum that is right: the documented layout, written by hand."""
    head = struct.pack("<2sBBB3xIIQ", b"HS", version, codec, value_type, numel, count, len(body))
    return np.frombuffer(head + struct.pack("<I4x", zlib.crc32(head + body)) + body, np.uint8)


ONE = struct.pack("<If", 3, 1.5)
TWO = struct.pack("<IIff", 3, 4, 1.5, 2.5)
FORGERIES = {
    "index beyond the tensor": forged(struct.pack("<If", 10, 1.5)),
    "indices that descend": forged(struct.pack("<IIff", 4, 3, 1.5, 2.5), count=2),
    "an index twice": forged(struct.pack("<IIff", 3, 3, 1.5, 2.5), count=2),
    "fewer entries than the body": forged(TWO, count=1),
    "more entries than the body": forged(ONE, count=2),
    "more entries than the tensor": forged(TWO, count=2, numel=1),
    "values of another width": forged(ONE, value_type=2),
    "an unknown type of values": forged(ONE, value_type=3),
    "another codec": forged(ONE, codec=255),
    "an index in an empty tensor": forged(ONE, numel=0),
}


@codecs
@pytest.mark.parametrize("name", FORGERIES)
def test_impossible_payloads_are_refused_though_their_checksum_is_right(codec, name):
    check_refuses(codec, FORGERIES[name], name)


def test_a_forgery_without_a_fault_is_read():
    """Or the test above could pass for the wrong reason."""
    decoded = CODECS.create("index_value").decode(forged(TWO, count=2))
    assert decoded.indices.tolist() == [3, 4]
    assert decoded.values.tolist() == [1.5, 2.5]


@codecs
def test_another_wire_version_is_refused_by_name_with_the_remedy(codec):
    with pytest.raises(CorruptPayload, match=r"wire version 2, this build reads 1: install one version"):
        codec.decode(forged(ONE, version=2))


@codecs
def test_numbers_on_the_wire_are_unique_and_fit_a_byte(codec):
    numbers = [case.create(CODECS).number for case in cases.CODECS]
    assert numbers.count(codec.number) == 1
    assert 0 < codec.number < 256


@codecs
def test_entry_bytes_is_about_what_an_entry_costs(codec):
    small, large = (codec.encode(selection_of(range(n), 100_000)).size for n in (1_000, 2_000))
    assert (large - small) / 1_000 == pytest.approx(codec.entry_bytes, rel=0.1)


@codecs
def test_decoding_does_not_write_to_the_payload(codec):
    payload = codec.encode(selection_of((1, 2), 5))
    payload.flags.writeable = False
    assert codec.decode(payload).count == 2
