"""How often a compressor asks, at a step's last gradient, whether the other ranks have come."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("horovod.torch", reason="it is there for Horovod's wait", exc_type=ImportError)
import itertools
import time

from hvd_sparse.torch import wire
from hvd_sparse.torch.wire import MOST_SKIPPED, LastGradientWait


def answering(answers: list[bool]) -> tuple[Callable[[], bool], list[bool]]:
    """Gives the answers one after the other, the last for ever; and what has been said."""
    said: list[bool] = []

    def answer() -> bool:
        said.append(answers[min(len(said), len(answers) - 1)])
        return said[-1]

    return answer, said


def asked(wait: LastGradientWait, answer: bool) -> int:
    is_done, said = answering([answer])
    wait.take(is_done, time.monotonic())
    return len(said)


def test_a_rest_ends_when_the_others_have_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "LONGEST_S", 600.0)
    wait = LastGradientWait()
    is_done, said = answering([False, False, True])
    wait.take(is_done, time.monotonic() - 600.0)  # the gradients took long to come
    assert said == [False, False, True]


def test_rests_in_vain_become_rare() -> None:
    wait = LastGradientWait()
    rests = [step for step in range(260) if asked(wait, False)]
    skipped = [after - before - 1 for before, after in itertools.pairwise(rests)]
    assert skipped == [1, 2, 4, 8, 16, 32, 64, 64]
    assert MOST_SKIPPED == 64


def test_a_rest_that_was_not_in_vain_is_followed_by_others() -> None:
    wait = LastGradientWait()
    assert asked(wait, False)
    assert [bool(asked(wait, True)) for _ in range(4)] == [False, True, True, True]
