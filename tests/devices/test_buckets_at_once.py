"""Steps on a device, and buckets passed over at once, give the bits of the host."""

import pytest
from forks import ON_THE_CPU, interpreted, told_by
from frontends._method_cases import STAYING
from installed import has_triton, is_installed

pytestmark = pytest.mark.skipif(not is_installed("torch"), reason="torch is not installed")

TENSORS = 3


@pytest.fixture(scope="module")
def told():
    if not has_triton():
        pytest.skip("triton is not installed")
    return told_by("devices.bucket_worker", **interpreted())


@pytest.mark.full
def test_results_and_memories_have_the_bits_of_numpy(told):
    assert len(told["same"]) == 8
    assert [case for case, is_same in told["same"].items() if not is_same] == []
    assert told["most together"] == [TENSORS, TENSORS]


@pytest.mark.full
@pytest.mark.parametrize("method", ["topk", "ldte_bs"])
def test_a_bucket_takes_four_launches_of_the_engines_own_cold_or_warm(told, method):
    """Passes and sums, which also put back the entries that were too many."""
    counted = told[f"launches, {method}"]
    assert counted["passes"] == 4 * [3]
    assert counted["sums"] == 4 * [1]
    assert counted["all else"][1:] == 3 * [0]
    assert counted["put back"][1:] == 3 * [TENSORS], "the passes took no more than was asked"


def test_results_and_memories_have_the_bits_of_the_host():
    same = told_by("devices.step_worker", **ON_THE_CPU)
    assert len(same) == 2 * (len(STAYING) + 9) + 4
    assert [case for case, is_same in same.items() if not is_same] == []
