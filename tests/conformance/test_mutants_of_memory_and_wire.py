"""The checks object to memories, codecs and exchanges that are broken on purpose."""

from __future__ import annotations

import numpy as np
import pytest
from conformance.codec_checks import check_codec
from conformance.exchange_checks import check_sums
from conformance.memory_checks import check_memory

from hvd_sparse.core.codecs import _frame
from hvd_sparse.core.codecs.index_value import IndexValue
from hvd_sparse.core.exchanges.allgather import AllGatherExchange
from hvd_sparse.core.memories.error_feedback import ErrorFeedback, ErrorFeedbackState
from hvd_sparse.types import Selection


class Memory(ErrorFeedback):
    """Error feedback of another state."""

    state = ErrorFeedbackState

    def create(self, spec, *, rollback):
        return self.state(spec, rollback)


class NotCleared(ErrorFeedbackState):
    def update(self, sent, is_exact, kernels):
        pass


class AllCleared(ErrorFeedbackState):
    def update(self, sent, is_exact, kernels):
        self.residual.new[:] = 0


class Subtracted(ErrorFeedbackState):
    def compensate(self, gradient, kernels):
        np.subtract(gradient, self.residual.old, out=self.residual.new)
        return self.residual.new


class RoundingDropped(ErrorFeedbackState):
    def update(self, sent, is_exact, kernels):
        super().update(sent, True, kernels)


class NeverBack(ErrorFeedbackState):
    def roll_back(self):
        self.residual.commit()


@pytest.mark.parametrize("state", [NotCleared, AllCleared, Subtracted, RoundingDropped, NeverBack])
def test_a_broken_memory_is_caught(state):
    with pytest.raises(AssertionError):
        check_memory(type("Broken", (Memory,), {"state": state})())


class DropsLast(IndexValue):
    def encode(self, selection):
        return super().encode(Selection(selection.indices[:-1], selection.values[:-1], selection.numel))


class Halves(IndexValue):
    def encode(self, selection):
        return super().encode(Selection(selection.indices, selection.values * 0.5, selection.numel))


@pytest.mark.parametrize("codec", [DropsLast(), Halves()], ids=["last entry dropped", "values halved"])
def test_a_broken_codec_is_caught(codec):
    with pytest.raises(AssertionError):
        check_codec(codec)


def test_a_codec_that_does_not_look_at_its_checksum_is_caught(monkeypatch):
    monkeypatch.setattr(_frame.zlib, "crc32", lambda *_: 0)
    with pytest.raises(AssertionError, match="was read as"):
        check_codec(IndexValue())


class AnyOrder(AllGatherExchange):
    def run(self, message, rank, world_size):
        messages = yield from super().run(message, rank, world_size)
        return messages[rank:] + messages[:rank]


def test_an_exchange_that_sums_in_another_order_on_every_rank_is_caught():
    with pytest.raises(AssertionError, match="world of"):
        check_sums(AnyOrder(), 5)


@pytest.mark.parametrize(
    ("check", "part"),
    [
        (check_memory, ErrorFeedback()),
        (check_codec, IndexValue()),
    ],
)
def test_the_parts_that_the_mutants_are_made_of_pass(check, part):
    """Or every mutant would be caught by the same fault."""
    check(part)
