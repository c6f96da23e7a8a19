"""The soak on real ranks, under MPI and Gloo in turn: a new launch for every world."""

import pytest
from harness import CONTROLLERS, LIMIT_S, launch
from soak.plan import Plan


def soak(folder, sizes, steps, between):
    checks = faults = 0
    for segment, size in enumerate(sizes):
        numbers = (segment * steps, steps, between, len(sizes) * steps)
        arguments = (str(folder), *map(str, numbers))
        controller = CONTROLLERS[segment % len(CONTROLLERS)]
        options = {"limit_s": LIMIT_S + steps}
        results = launch("soak/torch_soak.py", size, controller, *arguments, **options).check()
        for result in results:
            assert result["skipped"] == result["faults"]
        checks += results[0]["checks"]
        faults += results[0]["faults"]
    return checks, faults


@pytest.mark.timeout(3 * LIMIT_S)
def test_nothing_is_lost_and_replicas_stay_equal_on_real_ranks(tmp_path):
    checks, faults = soak(tmp_path, [2, 3], steps=100, between=5)
    assert checks == 40 and faults > 3


@pytest.mark.soak
@pytest.mark.timeout(6 * LIMIT_S)
def test_so_it_is_over_20000_steps_at_every_100th(tmp_path):
    checks, faults = soak(tmp_path, Plan(4).sizes(20), steps=1000, between=100)
    assert checks == 200 and faults > 500
