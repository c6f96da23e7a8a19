"""Buckets: every compressed tensor in exactly one, neighbours together, the same on every rank."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import configure, tensors

from hvd_sparse.step.buckets import merge_small, one_per_tensor

SHAPES = st.lists(st.lists(st.integers(0, 40), max_size=3).map(tuple), max_size=12)


@given(
    shapes=SHAPES,
    min_numel=st.integers(0, 100),
    compress_1d=st.booleans(),
    bucket_bytes=st.integers(1, 4_000),
)
def test_every_compressed_tensor_is_in_exactly_one_bucket(
    shapes, min_numel, compress_1d, bucket_bytes
):
    specs = tensors(*shapes)
    configuration = configure(min_numel=min_numel, compress_1d=compress_1d)
    wanted = [
        i
        for i, shape in enumerate(shapes)
        if 0 < math.prod(shape) >= min_numel and (compress_1d or len(shape) > 1)
    ]  # fmt: skip
    assert one_per_tensor(specs, configuration) == [(i,) for i in wanted]
    plan = merge_small(specs, configuration, bucket_bytes)
    assert sorted(i for bucket in plan for i in bucket) == wanted
    assert [i for bucket in reversed(plan) for i in bucket] == wanted, (
        "a bucket's members are no neighbours"
    )


@given(shapes=SHAPES, bucket_bytes=st.integers(1, 2_000))
def test_a_bucket_is_closed_by_the_tensor_that_fills_it(shapes, bucket_bytes):
    """Expected bytes: 8 an entry, a quarter of the entries, at least one of each tensor."""
    plan = merge_small(tensors(*shapes), configure(density=0.25), bucket_bytes)
    cost = {i: 8 * max(1, math.prod(shape) // 4) for i, shape in enumerate(shapes)}
    for number, bucket in enumerate(plan):
        filled = sum(cost[i] for i in bucket)
        assert filled >= bucket_bytes or number == len(plan) - 1
        assert filled - cost[min(bucket)] < bucket_bytes


@pytest.mark.parametrize(
    ("tensors_in_model", "messages"), [(1, 1), (204, 1), (205, 1), (206, 2), (300, 2)]
)
def test_many_small_tensors_travel_in_few_messages(tensors_in_model, messages):
    """40 entries of each tensor, 8 bytes an entry: 205 of them reach 64 KiB."""
    plan = merge_small(tensors(*[(64, 64)] * tensors_in_model), configure(density=0.01))
    assert len(plan) == messages


def test_a_bucket_that_is_filled_to_the_byte_is_full():
    assert merge_small(tensors((4,), (4,), (4,)), configure(density=0.25), 16) == [(1, 2), (0,)]


def test_a_large_tensor_travels_alone():
    shapes = [(2_000, 2_000), (2_000, 2_000)]
    assert merge_small(tensors(*shapes), configure(density=0.01)) == [(1,), (0,)]


def test_nothing_to_compress_is_no_bucket():
    assert merge_small([], configure()) == []
    assert merge_small(tensors((0,), (3,)), configure(min_numel=10)) == []
