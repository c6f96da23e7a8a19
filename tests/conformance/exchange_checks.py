"""What every exchange promises, as checks that any exchange can be put to."""

from __future__ import annotations

from typing import Any

import numpy as np
import worlds
from conformance.codec_checks import selection_of

from hvd_sparse.collectives.local import LocalCollective
from hvd_sparse.core import reference
from hvd_sparse.core.driver import Conversation
from hvd_sparse.core.message import Message, write_error, write_message
from hvd_sparse.registry import CODECS
from hvd_sparse.types import Selection

NUMEL = 40
CODEC = CODECS.create("index_value")


def selection_from(rank: int, seed: int) -> Selection:
    """Counts as uneven as they come: nothing, one, a few, everything; supports that overlap between ranks."""
    count = (0, 1, 7, NUMEL)[(rank + seed) % 4]
    indices = np.sort(np.random.default_rng([rank, seed]).permutation(NUMEL)[:count])
    return selection_of(indices.tolist(), NUMEL, seed=10 * seed + rank)


def messages_on(collective: LocalCollective, exchange: Any, message: np.ndarray, name: str = "x") -> list[Message]:
    conversation = exchange.run(message, collective.rank, collective.world_size)
    return Conversation(conversation, collective, name).finish(worlds.TIMEOUT_S)


def sum_on(collective: LocalCollective, exchange: Any, seed: int) -> np.ndarray:
    frame = CODEC.encode(selection_from(collective.rank, seed))
    total = np.zeros(NUMEL, np.float32)
    for received in messages_on(collective, exchange, write_message(collective.rank, 3, 77, {5: frame}), f"s{seed}"):
        assert (received.step, received.configuration, received.members) == (3, 77, (5,))
        selection = CODEC.decode(received.frames[0])
        reference.scatter_add(total, selection.indices, selection.values)
    return total


def check_sums(exchange: Any, world_size: int) -> None:
    """Every rank gets the same bits, which are those of a plain loop over the ranks in order."""
    for seed in range(4):
        expected = np.zeros(NUMEL, np.float32)
        for rank in range(world_size):
            sent = selection_from(rank, seed)
            for i, value in zip(sent.indices.tolist(), sent.values):
                expected[i] = expected[i] + value
        for total in worlds.run(world_size, lambda c, seed=seed: sum_on(c, exchange, seed)):
            assert total.tobytes() == expected.tobytes(), f"world of {world_size}, seed {seed}"


def check_errors_arrive(exchange: Any, world_size: int) -> None:
    """An error of one rank reaches every rank, in words, among the others' entries."""

    def script(collective: LocalCollective) -> list[str | None]:
        rank = collective.rank
        fails = rank == world_size - 1
        message = write_error(rank, 0, 1, "ärger") if fails else write_message(rank, 0, 1, {})
        return [received.error for received in messages_on(collective, exchange, message)]

    for errors in worlds.run(world_size, script):
        assert errors == [None] * (world_size - 1) + ["ärger"]
