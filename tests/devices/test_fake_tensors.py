"""What gives a device work asks it for nothing: shown with tensors that have no entries."""

from __future__ import annotations

import json

import pytest
from forks import ON_THE_CPU, run_worker
from installed import is_installed

pytestmark = pytest.mark.skipif(not is_installed("torch"), reason="torch is not installed")


@pytest.fixture(scope="module")
def found():
    done = run_worker("devices.fake_worker", **ON_THE_CPU)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_no_kernel_that_must_not_wait_asks_for_an_entry(found):
    assert len(found["kernels"]) == 12
    assert {name: error for name, error in found["kernels"].items() if error} == {}


def test_a_planted_wait_is_caught(found):
    assert found["planted"] == {
        "item": "DataDependentOutputException",
        "if": "DataDependentOutputException",
        "nonzero": "DynamicOutputShapeException",
        "a mask": "DynamicOutputShapeException",
        "cpu": "ToTheHost",
        "an item in a pass": "DataDependentOutputException",
    }
