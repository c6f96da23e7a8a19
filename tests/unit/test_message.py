"""Messages, checksums, padding: bytes come apart as they were joined. Carriers: what sums tell."""

import itertools
import os
import zlib

import numpy as np
import pytest
import worlds
from conformance.codec_checks import selection_of
from conformance.fuzzing import repaired_message
from hypothesis import given
from hypothesis import strategies as st
from programs import run_python

from hvd_sparse.collectives.contract import MOST_BYTES
from hvd_sparse.errors import CorruptPayload, RankMismatch, UnsupportedReduction
from hvd_sparse.registry import CODECS
from hvd_sparse.wire.carrier import CHECKSUM_BITS, CarrierLayout, carrier_layout
from hvd_sparse.wire.message import ERROR_TEXT_LIMIT, split_messages, write_error, write_message
from hvd_sparse.wire.padding import (
    HEAD,
    LARGE,
    MOST_PADDED,
    PATIENCE,
    Padding,
    Room,
    read_blocks,
    write_block,
)

CODEC = CODECS.create("index_value")


def frame(count):
    return CODEC.encode(selection_of(range(count), 10))


def test_long_errors_are_cut_even_within_a_letter_and_those_with_a_path_that_is_no_unicode_arrive():
    text = "ä" * ERROR_TEXT_LIMIT + "end"
    (message,) = split_messages(write_error(0, 0, 0, "x" + text), range(1))
    assert message.error.startswith("xää")
    assert len(message.error.encode()) <= ERROR_TEXT_LIMIT + 3
    text = f"no such file: {os.fsdecode(b'caf' + bytes([0xE9]))}"  # an undecodable byte
    (message,) = split_messages(write_error(0, 0, 0, text), range(1))
    assert message.error == r"no such file: caf\udce9"


def test_steps_beyond_32_bits_wrap_rather_than_fail():
    (message,) = split_messages(write_message(0, 2**32 + 5, 0, {}), range(1))
    assert message.step == 5


TWO = write_message(0, 7, 9, {}, (2, 5)).tobytes()
ERROR = write_error(0, 3, 5, "größe").tobytes()


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (TWO[:32] + TWO[36:40] + TWO[32:36] + TWO[40:], "members of a message do not ascend"),
        (TWO[:32] + 2 * TWO[32:36] + TWO[40:], "members of a message do not ascend"),
        (TWO[:5] + b"\1" + TWO[6:], "values that no rank writes"),
        (TWO[:4] + b"\1" + TWO[5:], "values that no rank writes"),
        (TWO + bytes(3), "3 bytes follow the 0 frames"),
        (ERROR + b"\xff", "no UTF-8"),
        (ERROR + bytes(ERROR_TEXT_LIMIT), "longer than any that is written"),
    ],
    ids=[
        *("descending", "twice", "padding", "error-with-members", "behind-the-frames"),
        *("no-letters", "long-error"),
    ],
)
def test_what_no_rank_writes_is_refused_though_its_checksums_are_right(message, words):
    with pytest.raises(CorruptPayload, match=words):
        split_messages(np.frombuffer(repaired_message(message), np.uint8), range(1))


@pytest.mark.parametrize("start", [b"HSm" + TWO[3:4], TWO[:3] + bytes([TWO[3] + 1])])
def test_a_message_of_another_version_is_refused_though_its_checksum_is_right(start):
    head = start + TWO[4:40]
    message = head + zlib.crc32(head).to_bytes(4, "little") + TWO[44:]
    with pytest.raises(CorruptPayload, match="install one version on all ranks"):
        split_messages(np.frombuffer(message, np.uint8), range(1))


def test_a_member_without_a_frame_is_a_member_all_the_same():
    written = write_message(0, 7, 99, {4: frame(3)}, members=[9, 4, 2])
    (message,) = split_messages(written, range(1))
    assert (message.members, list(message.frames)) == ((2, 4, 9), [4])
    assert message.frame(4).tobytes() == frame(3).tobytes()
    with pytest.raises(CorruptPayload, match="rank 0 lacks a frame for tensor number 9"):
        message.frame(9)


def test_the_messages_of_some_ranks_come_apart_too():
    joined = np.concatenate([write_message(rank, 0, 0, {}) for rank in (1, 4)])
    assert [message.rank for message in split_messages(joined, [1, 4])] == [1, 4]
    with pytest.raises(CorruptPayload, match="is from rank 4, but must be from rank 5"):
        split_messages(joined, [1, 5])


@pytest.mark.parametrize(("isal_is_there", "module"), [(True, "isal.isal_zlib"), (False, "zlib")])
def test_isal_is_used_if_it_is_there_and_zlib_otherwise(isal_is_there, module):
    if isal_is_there:
        pytest.importorskip("isal", reason="it is the library that is looked for")
    hide = "" if isal_is_there else "sys.modules['isal'] = None; "
    script = "from hvd_sparse.wire.frame import crc32; print(crc32.__module__, crc32(b'hvd'))"
    run = run_python("-c", f"import sys; {hide}{script}")
    assert run.stdout.split() == [module, str(zlib.crc32(b"hvd"))]


CONTENT = np.arange(5, dtype=np.uint8)


def test_blocks_that_are_not_whole_are_not_read():
    whole = write_block(CONTENT, 64)
    for joined in (whole[:-1], whole[:3], np.concatenate([whole, whole[:20]])):
        assert read_blocks(joined) is None
    for place in (0, 8):  # a length below the head's, and a content beyond the block's end
        altered = whole.copy()
        altered[place : place + 8] = np.array([15 if place == 0 else 49], "<u8").view(np.uint8)
        assert read_blocks(altered) is None


def test_a_room_grows_at_once_and_shrinks_after_a_while_and_fits_into_one_collective():
    room = Room()
    room.note(10_000)
    room.note(100_000)
    large = room.nbytes
    assert large >= 100_000
    for _ in range(PATIENCE - 1):
        room.note(large // LARGE - 1000)
        assert room.nbytes == large
    room.note(10)
    assert large // LARGE - 1000 <= room.nbytes < large
    assert room.for_ranks(2) == room.nbytes
    room.note(MOST_BYTES // 2 - 100)
    assert 2 * room.nbytes > MOST_BYTES >= 2 * room.for_ranks(2) > MOST_BYTES - 2


def padded_steps(collective, lengths, dtype=np.uint8):
    padding, blocks, brought = Padding(), [], []
    for length in lengths:
        content = np.arange(length + collective.rank, dtype=dtype)
        block = padding.pack(content, (3, 0), 2)
        blocks.append(block.size)
        joined = collective.allgather(block, "x").wait(worlds.TIMEOUT_S)
        brought.append(padding.unpack(joined, (3, 0), content.dtype))
    return brought, blocks


def test_an_exchange_brings_the_same_and_its_blocks_keep_their_length():
    lengths = [200, 190, 205, 199, 210, 0]  # the last block of rank 0 is empty
    for brought, blocks in worlds.run(2, lambda c: padded_steps(c, lengths, np.float32)):
        for gathered, length in zip(brought, lengths):
            expected = [np.arange(length + rank, dtype=np.float32) for rank in range(2)]
            assert worlds.same_bits(gathered, np.concatenate(expected))
        assert len(set(blocks[1:])) == 1  # the first block is as long as its content


def test_long_arrays_are_not_padded():
    length = MOST_PADDED + 1000
    lengths = [length, length - 100, length]
    for _, blocks in worlds.run(2, lambda c: padded_steps(c, lengths)):
        assert max(blocks) <= length + 1 + HEAD.size and len(set(blocks)) == 2


def test_an_exchange_is_given_blocks_that_are_not_whole_as_they_are():
    padding = Padding()
    block = padding.pack(CONTENT, (0, 0), 1)
    block[0] = 3
    assert padding.unpack(block, (0, 0), CONTENT.dtype) is block


dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64])
CHECKSUMS = st.integers(0, 2**CHECKSUM_BITS - 1)
WORLDS = (1, 2, 3, 4, 7, 31, 32, 33, 128, 300)


def ring_sum(carriers, factor=1.0, prescale=1.0):
    """As frameworks sum, in the carriers' own precision: scaled, added one by one, scaled."""
    dtype = carriers[0].dtype
    total = np.zeros_like(carriers[0])
    for carrier in carriers:
        total = total + carrier * dtype.type(prescale)
    return total * dtype.type(factor)


def adasum(carriers):
    """In a binary tree over the ranks, a power of two of them:
    a (+) b = (1 - a.b / 2|a|**2) a + (1 - a.b / 2|b|**2) b
    """
    if len(carriers) == 1:
        return carriers[0].astype(np.float64)
    half = len(carriers) // 2
    a, b = adasum(carriers[:half]), adasum(carriers[half:])
    return (1 - a @ b / (2 * (a @ a))) * a + (1 - a @ b / (2 * (b @ b))) * b


def carriers_of(layout, checksums, *, failed=()):
    ranks = enumerate(checksums)
    return [layout.write(rank, checksum, failed=rank in failed) for rank, checksum in ranks]


@dtypes
@given(
    checksum=CHECKSUMS,
    world_size=st.integers(1, 300),
    predivide=st.integers(1, 64),
    scale=st.sampled_from([1.0, 3.0, 1024.0]),
)
def test_equal_ranks_are_never_taken_for_different_ones_and_the_factor_is_recovered(
    dtype, checksum, world_size, predivide, scale
):
    layout = carrier_layout(dtype, world_size)
    carriers = carriers_of(layout, [checksum] * world_size)
    report = layout.read(ring_sum(carriers, predivide / world_size, scale / predivide), "w")
    slack = (4 + world_size) * np.finfo(dtype).eps
    assert report.factor == pytest.approx(scale / world_size, rel=slack)
    assert report.failures == 0


@dtypes
@given(checksum=CHECKSUMS, old=CHECKSUMS, world_size=st.integers(1, 300))
def test_carriers_that_agree_on_another_checksum_are_refused(dtype, checksum, old, world_size):
    layout = carrier_layout(dtype, world_size)
    reduced = ring_sum(carriers_of(layout, [old] * world_size), 1.0 / world_size)
    if old == checksum:
        layout.read(reduced, "w", checksum)
    else:
        with pytest.raises(RankMismatch, match=r"'w': the result has data of another step"):
            layout.read(reduced, "w", checksum)


@dtypes
@pytest.mark.parametrize("bit", range(CHECKSUM_BITS))
@pytest.mark.parametrize("world_size", [2, 32, 300])
def test_every_bit_of_the_checksum_of_one_rank_counts(bit, world_size, dtype):
    layout = carrier_layout(dtype, world_size)
    reduced = ring_sum(carriers_of(layout, [0] * (world_size - 1) + [1 << bit]))
    with pytest.raises(RankMismatch, match=r"'w'.*run different steps or configurations"):
        layout.read(reduced, "w")


@dtypes
@pytest.mark.parametrize("world_size", WORLDS)
def test_failures_are_counted_and_come_before_differing_checksums(world_size, dtype):
    layout = carrier_layout(dtype, world_size)
    failed = set(range(0, world_size, 2))
    checksums = [0 if rank in failed else 0x12345 for rank in range(world_size)]
    reduced = ring_sum(carriers_of(layout, checksums, failed=failed), 1.0 / world_size)
    assert layout.read(reduced, "w").failures == len(failed)


NO_SUMS = {
    "Min": lambda carriers: np.min(carriers, axis=0),
    "Max": lambda carriers: np.max(carriers, axis=0),
    "Product": lambda carriers: np.prod(carriers, axis=0),
    "Adasum": lambda carriers: adasum(carriers).astype(carriers[0].dtype),
    "nothing at all": lambda carriers: carriers[-1],
    "zeros": lambda carriers: carriers[0] * 0,
    "negated": lambda carriers: -np.sum(carriers, axis=0),
    "infinite": lambda carriers: np.full_like(carriers[0], np.inf),
    "not a number": lambda carriers: np.full_like(carriers[0], np.nan),
}


@dtypes
@pytest.mark.parametrize("reduction", NO_SUMS)
@pytest.mark.parametrize("world_size", [2, 4, 8, 16, 64, 256])
def test_what_is_no_sum_is_refused_with_the_remedy(world_size, reduction, dtype):
    layout = carrier_layout(dtype, world_size)
    for checksum in (0, 0xFFFFF):
        carriers = carriers_of(layout, [checksum] * world_size)
        with pytest.raises(UnsupportedReduction, match=r"'w'.*Average or hvd.Sum.*process_set"):
            layout.read(NO_SUMS[reduction](carriers), "w")


@dtypes
@pytest.mark.parametrize("world_size", range(2, 11))
def test_sums_over_other_ranks_than_the_process_sets_are_refused(world_size, dtype):
    """Each set of ranks counts from 0, so ranks 0, 1, 0, 1 may meet in one sum."""
    layout = carrier_layout(dtype, world_size)
    carriers = carriers_of(layout, [0x12345] * world_size)
    with pytest.raises(UnsupportedReduction):
        layout.read(ring_sum([*carriers, carriers[0]]), "summed over more")
    for size in range(1, world_size):
        for ranks in itertools.combinations(range(world_size), size):
            total = ring_sum([carriers[rank] for rank in ranks])
            for reduced in (total, total / dtype(size)):
                with pytest.raises(UnsupportedReduction):
                    layout.read(reduced, f"summed over {ranks}")


@dtypes
@pytest.mark.parametrize("world_size", WORLDS)
def test_a_carrier_is_tiny_and_what_it_says_besides_the_rank_is_tinier(world_size, dtype):
    """A large checksum would drown the ranks, and Adasum look like Average."""
    layout = carrier_layout(dtype, world_size)
    full = layout.write(0, 0xFFFFF, failed=True, is_finite=False)
    assert (full.dtype, full.shape) == (dtype, (layout.size,))
    assert layout.size < 64
    assert 0 < np.abs(full - layout.write(0, 0, failed=False)).max() <= 2.0**-20


def test_a_template_is_complete_before_other_threads_can_see_it():
    """TensorFlow writes the first carriers of several tensors in several threads."""
    layout = CarrierLayout(np.dtype(np.float64), 2)
    seen = []

    class Shared(dict):
        def __setitem__(self, rank, template):
            super().__setitem__(rank, template)
            seen.append(layout.write(rank, 7, failed=False))

    layout._templates = Shared()
    np.testing.assert_array_equal(layout.write(1, 7, failed=False), seen[0])
    assert seen[0][0] == 1.0
