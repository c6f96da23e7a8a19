"""How many entries a density asks for, and when sending all of them is cheaper."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_sparse.checks import count_from_density
from hvd_sparse.collectives.contract import in_nodes_of
from hvd_sparse.registry import EXCHANGES

ALLGATHER = EXCHANGES.create("allgather")


@given(numel=st.integers(1, 2**32 - 1), thousandths=st.integers(1, 1000))
def test_count_is_the_whole_part_of_the_exact_product(numel, thousandths):
    exact = math.floor(Fraction(thousandths, 1000) * numel)
    assert count_from_density(numel, thousandths / 1000) == max(1, exact)


@pytest.mark.parametrize(
    ("numel", "density", "count"),
    [
        (0, 0.5, 0),
        (1, 0.001, 1),
        (999, 0.001, 1),
        (1_999, 0.001, 1),
        (2_000, 0.001, 2),
        (7, 1.0, 7),
        (10, 1e-300, 1),
    ],
)
def test_count_is_at_least_one_and_at_most_all(numel, density, count):
    assert count_from_density(numel, density) == count


@given(
    world_size=st.integers(2, 512),
    entries=st.integers(1, 10_000),
    entry_bytes=st.sampled_from([6, 8, 12]),
)
def test_dense_is_cheaper_exactly_where_the_ledger_of_received_bytes_says_so(
    world_size, entries, entry_bytes
):
    numel = 10_000
    gathered = (world_size - 1) * entries * entry_bytes
    ring = Fraction(2 * (world_size - 1) * 4 * numel, world_size)
    if gathered != ring:
        placement = in_nodes_of(1, 0, world_size)
        assert ALLGATHER.is_dense_cheaper(entries / numel, entry_bytes, placement) == (
            gathered > ring
        )
