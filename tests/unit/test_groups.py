"""Groups of tensors change nothing but the number of messages."""

import math
import tracemalloc
from unittest import mock

import numpy as np
import pytest
import worlds
from hypothesis import example, given
from hypothesis import strategies as st
from unit import merged

from hvd_sparse.errors import InvalidOption
from hvd_sparse.step.buckets import grouped, merge_small, one_per_tensor
from hvd_sparse.step.session import Session

SPECS = worlds.tensors((40, 3), (7, 9), (300, 2), (5, 5), (64, 8), (9, 9))
SHAPES = st.lists(st.lists(st.integers(0, 40), max_size=3).map(tuple), max_size=12)


def buckets(groups):
    return grouped(SPECS, worlds.configure(groups=groups))


def train(plans, **options):
    """All bits that are applied and kept, by the plans in turn."""
    configuration = worlds.configure(density=0.05, groups=plans[0], **options)
    absent = {3: ("t1", "t4")}
    options = {"steps": 6, "absent": absent, "draw": worlds.normals, "specs": SPECS}
    return merged.bits(merged.train(configuration, plans=plans, **options))


def test_a_number_of_groups_is_that_many_of_neighbours_or_one_a_tensor_and_takes_no_memory():
    for number in (1, 2, 3, 10**7, 10**400):
        tracemalloc.start()
        plan = buckets(number)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(plan) == min(number, len(SPECS)) and most < 100_000
        assert [position for bucket in reversed(plan) for position in bucket] == list(range(6))


def test_names_are_taken_as_they_are_and_the_others_travel_alone_or_are_refused():
    assert buckets([["t5", "t0"], ["t3", "t2"]]) == [(0, 5), (2, 3), (4,), (1,)]
    with pytest.raises(InvalidOption, match="'t9', but no tensor has this name; there are: t0"):
        buckets([["t0", "t9"]])


@pytest.mark.parametrize("exchange", ["allgather", "gtopk", "oktopk"])
def test_groups_make_no_difference_to_any_bit_and_may_change_at_any_step(exchange):
    alone = train([50], exchange=exchange)
    for plans in ([None], [1], [2, 50, [["t0", "t5"], ["t1", "t4"]]]):
        assert train(plans, exchange=exchange) == alone


def test_groups_do_not_change_in_the_middle_of_a_step():
    def script(collective):
        session = Session(worlds.configure(), SPECS, collective, average=False)
        wire, ticket = session.driver.compress(0, np.ones(SPECS[0].numel, np.float32))
        with pytest.raises(InvalidOption, match="'t0' has no result yet: change groups between"):
            session.step.regroup(buckets(1))
        reduced = collective.allreduce(wire, "t0").wait(None)
        session.driver.decompress(reduced, ticket)
        session.step.regroup(buckets(1))

    worlds.run(2, script)


@example(shapes=[(4, 5), (20,), (19, 1)], min_numel=20, compress_1d=False, bucket_bytes=1)
@example(shapes=[(), (0, 5), (1, 1)], min_numel=0, compress_1d=True, bucket_bytes=1)
@given(
    shapes=SHAPES,
    min_numel=st.integers(0, 100),
    compress_1d=st.booleans(),
    bucket_bytes=st.integers(1, 4_000),
)
def test_every_compressed_tensor_is_in_one_bucket(shapes, min_numel, compress_1d, bucket_bytes):
    specs = worlds.tensors(*shapes)
    configuration = worlds.configure(min_numel=min_numel, compress_1d=compress_1d)
    wanted = [
        i
        for i, shape in enumerate(shapes)
        if 0 < math.prod(shape) >= min_numel and (compress_1d or len(shape) > 1)
    ]
    assert one_per_tensor(specs, configuration) == [(i,) for i in wanted]
    with mock.patch("hvd_sparse.step.buckets.BUCKET_BYTES", bucket_bytes):
        plan = merge_small(specs, configuration)
    assert [i for bucket in reversed(plan) for i in bucket] == wanted


@given(shapes=SHAPES, bucket_bytes=st.integers(1, 2_000))
def test_a_bucket_is_closed_by_the_tensor_that_fills_it(shapes, bucket_bytes):
    """Expected bytes: 8 an entry, a quarter of the entries, at least one of each tensor."""
    with mock.patch("hvd_sparse.step.buckets.BUCKET_BYTES", bucket_bytes):
        plan = merge_small(worlds.tensors(*shapes), worlds.configure(density=0.25))
    cost = {i: 8 * max(1, math.prod(shape) // 4) for i, shape in enumerate(shapes)}
    for number, bucket in enumerate(plan):
        filled = sum(cost[i] for i in bucket)
        assert filled >= bucket_bytes or number == len(plan) - 1
        assert filled - cost[min(bucket)] < bucket_bytes
