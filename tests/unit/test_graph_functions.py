"""The functions that TensorFlow's graphs call, without graphs."""

from types import SimpleNamespace

import numpy as np
import pytest
import worlds

pytest.importorskip("horovod.tensorflow", exc_type=ImportError)
from hvd_sparse.errors import SparseError
from hvd_sparse.kernels import reference
from hvd_sparse.plan.policy import Policy
from hvd_sparse.step.step import Step
from hvd_sparse.tensorflow import graph_functions
from hvd_sparse.watch.watchdog import Ledger

TOKENS = {b"a": 0, b"b": 1}


def test_tensors_of_a_failed_step_that_have_no_result_are_dropped_in_the_next(monkeypatch):
    monkeypatch.setattr(graph_functions, "LEAST_WAIT_S", 0.0)
    specs = worlds.tensors((12,), (9,))
    step = Step(worlds.configure(), specs, [(0,), (1,)], reference)
    step.meet(0, 1)
    owner = SimpleNamespace(step=step, watchdog=SimpleNamespace(ledger=Ledger()))
    functions = graph_functions.GraphFunctions(owner, TOKENS, Policy())
    functions.traced |= {"t0", "t1"}

    def send(token):
        gradient = np.ones(specs[TOKENS[token]].numel, np.float32)
        wire, number, *_ = functions.send(gradient, token, 1.0)
        return wire, number

    for _ in range(3):
        wire, number = send(b"a")
        send(b"b")
        with pytest.raises(SparseError):
            functions.receive(number, np.full_like(wire, np.nan), wire, wire)
    send(b"a")
    assert len(functions._tickets) == 1
