"""Every exchange brings the same sum to every rank, in worlds of every size."""

from __future__ import annotations

import cases
import numpy as np
import pytest
import worlds
from conformance.exchange_checks import check_errors_arrive, check_sums

from hvd_sparse.core import collective as requests
from hvd_sparse.core.driver import Conversation
from hvd_sparse.core.message import write_message
from hvd_sparse.registry import EXCHANGES

exchanges = pytest.mark.parametrize("case", cases.EXCHANGES, ids=str)
worlds_of = pytest.mark.parametrize("world_size", [1, 2, 3, 5, 8])
REQUESTS = {
    "allgather": requests.AllGather,
    "allreduce": requests.AllReduce,
    "broadcast": requests.Broadcast,
    "alltoall": requests.AllToAll,
}


@exchanges
@worlds_of
def test_all_ranks_get_the_bits_of_a_sum_in_rank_order_whatever_each_rank_sent(case, world_size):
    check_sums(case.create(EXCHANGES), world_size)


@exchanges
@worlds_of
def test_an_error_on_one_rank_arrives_on_all(case, world_size):
    check_errors_arrive(case.create(EXCHANGES), world_size)


@exchanges
def test_the_first_request_is_the_declared_one_and_never_empty(case):
    exchange = case.create(EXCHANGES)
    first = next(exchange.run(write_message(0, 0, 0, {}), 0, 2))
    assert isinstance(first, REQUESTS[exchange.phases[0]])
    assert first.array.dtype == np.uint8 and first.array.size > 0


@exchanges
def test_a_world_of_one_asks_for_exactly_the_declared_phases(case):
    exchange, kinds = case.create(EXCHANGES), []

    conversation = spied(exchange.run(write_message(0, 0, 0, {}), 0, 1), kinds)
    (messages,) = worlds.run(1, lambda collective: Conversation(conversation, collective, "x").finish(1.0))
    assert tuple(kinds) == exchange.phases
    assert [message.rank for message in messages] == [0]


def spied(conversation, kinds):
    """The conversation, with the kinds of its requests written down."""
    received = None
    while True:
        try:
            request = conversation.send(received)
        except StopIteration as stop:
            return stop.value
        kinds.append(next(kind for kind, cls in REQUESTS.items() if isinstance(request, cls)))
        received = yield request
