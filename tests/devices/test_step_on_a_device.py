"""A step whose vectors lie on a device gives and keeps the bits of one on the host."""

from __future__ import annotations

import json

import pytest
from forks import ON_THE_CPU, run_worker
from frontends._method_cases import STAYING
from installed import is_installed

pytestmark = pytest.mark.skipif(not is_installed("torch"), reason="torch is not installed")


def test_results_and_memories_have_the_bits_of_the_host():
    done = run_worker("devices.step_worker", **ON_THE_CPU)
    assert done.returncode == 0, done.stderr
    same = json.loads(done.stdout)
    assert len(same) == 2 * len(STAYING) + 3
    assert [case for case, is_same in same.items() if not is_same] == []
