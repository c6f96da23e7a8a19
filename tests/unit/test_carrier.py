"""The carrier: what a plain sum over the ranks tells, and every way in which it is no plain sum."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_sparse.errors import RankMismatch, UnsupportedReduction
from hvd_sparse.wire.carrier import CHECKSUM_BITS, CarrierLayout, carrier_layout

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
