"""Walks of a bucket's tensors that ask a device at the same time: one copy for all that ask."""

import gc
import weakref

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("greenlet")

import torch
from hypothesis import given
from hypothesis import strategies as st

from hvd_sparse.frontend.torch.compressor import say_ways
from hvd_sparse.kernels.torch import vector as together
from hvd_sparse.kernels.torch.vector import current_walk, fetch_all, run_together

DTYPES = (torch.float32, torch.float64, torch.int32, torch.int64)


class Asked:
    """Brings questions to the host, and notes how many came together."""

    def __init__(self, failing_round=None):
        self.rounds = []
        self._failing_round = failing_round

    def __call__(self, questions):
        self.rounds.append(len(questions))
        if len(self.rounds) - 1 == self._failing_round:
            raise RuntimeError("the device is gone")
        return [question.numpy() for question in questions]


def task_of(number, looks, told):
    def task():
        value = float(number)
        try:
            for _ in range(looks):
                value = float(ask(torch.tensor([value + 1.0]))[0])
        except RuntimeError as error:
            told[number] = str(error)
        else:
            told[number] = value

    return task


def ask(question):
    walk = current_walk()
    return question.numpy() if walk is None else walk.parent.switch(question)


def test_questions_of_one_round_come_by_one_copy_however_many_ask():
    told, asked = {}, Asked()
    run_together([task_of(i, looks, told) for i, looks in enumerate([2, 0, 3, 1])], asked)
    assert told == {0: 2.0, 1: 1.0, 2: 5.0, 3: 4.0}
    assert asked.rounds == [3, 2, 1]
    assert current_walk() is None


def test_a_walk_alone_and_walks_without_greenlet_ask_for_themselves(monkeypatch):
    told, asked = {}, Asked()
    run_together([task_of(0, 3, told)], asked)
    assert told == {0: 3.0} and not asked.rounds
    monkeypatch.setattr(together, "greenlet", None)
    run_together([task_of(i, 2, told) for i in range(3)], asked)
    assert told == {0: 2.0, 1: 3.0, 2: 4.0} and not asked.rounds


@pytest.mark.parametrize(("stay", "has_it", "lines"), [(2, False, 2), (2, True, 1), (0, False, 1)])
def test_who_waits_for_want_of_greenlet_is_told(monkeypatch, caplog, stay, has_it, lines):
    if not has_it:
        monkeypatch.setattr(together, "greenlet", None)
    with caplog.at_level("INFO", logger="hvd_sparse"):
        say_ways("mine", stay, [])
    assert len(caplog.records) == lines
    assert ("pip install 'hvd-sparse[fast]'" in caplog.text) is (lines == 2)


def test_a_copy_that_fails_fails_every_walk_that_asked_and_no_other():
    told, asked = {}, Asked(failing_round=1)
    run_together([task_of(i, looks, told) for i, looks in enumerate([3, 1, 2])], asked)
    assert told == {0: "the device is gone", 1: 2.0, 2: "the device is gone"}
    assert asked.rounds == [3, 2]


def test_walks_that_ended_hold_nothing():
    class Gradient:
        pass

    kept = Gradient()
    watched = weakref.ref(kept)

    def task(kept=kept):
        ask(torch.zeros(1))

    gc.disable()
    try:
        run_together([task, lambda: None], Asked())
        del task, kept
        assert watched() is None
    finally:
        gc.enable()


@given(
    st.lists(
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 5), min_size=0, max_size=2)),
        min_size=1,
        max_size=5,
    )
)
def test_what_comes_together_is_what_would_come_alone(shapes):
    drawn = np.random.default_rng(0)
    tensors = [
        torch.tensor(drawn.integers(-9, 9, shape).tolist(), dtype=dtype).reshape(shape)
        for dtype, shape in shapes
    ]
    for tensor, found in zip(tensors, fetch_all(tensors)):
        assert found.dtype == tensor.numpy().dtype and found.shape == tuple(tensor.shape)
        np.testing.assert_array_equal(found, tensor.numpy())
