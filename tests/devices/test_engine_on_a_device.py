"""The engine torch, and steps, on a device whose memory is closed and whose copies are late."""

import signal

import pytest
from forks import ON_THE_CPU, run_worker, told_by
from installed import is_installed

pytestmark = pytest.mark.skipif(not is_installed("torch"), reason="torch is not installed")

WAITS = {
    "directed": 0,
    "orthogonalized": 0,
    "assemble": 0,
    "trim": 0,
    "begin": 0,
    "assemble_together": 0,
    "take_at_least": 2,  # how many they are, and they themselves
}
"""How often a kernel waits for the device; every other one once."""
MAY_ADD_INTEGERS = {"digit_counts": ["scatter_add_"]}
"""Sums by atomics that are right in every order."""


WORKER = "devices.engine_worker"


@pytest.mark.full
def test_every_kernel_keeps_its_contract_on_a_device():
    assert told_by(WORKER, "conformance", **ON_THE_CPU) > 1000, (
        "the device was hardly ever waited for: was it used?"
    )


def test_the_part_that_mutants_are_put_to_passes():
    """Or every mutant would be caught by the same fault."""
    told_by(WORKER, "mutant", **ON_THE_CPU)


def test_kernels_work_if_the_device_is_torchs_default():
    told_by(WORKER, "default", **ON_THE_CPU)


@pytest.mark.parametrize(
    ("mutant", "code", "words"),
    [
        ("a wait left out", 1, "NaN"),
        ("a pinned buffer used too early", 1, "AssertionError"),
        ("a result read on the host", -signal.SIGSEGV, ""),
    ],
)
def test_a_broken_engine_is_caught(mutant, code, words):
    done = run_worker(WORKER, "mutant", mutant, **ON_THE_CPU)
    assert done.returncode == code, done.stderr
    assert words in done.stderr


def test_a_kernel_waits_for_the_device_no_more_often_than_is_said_and_never_behind_its_back():
    counted = told_by(WORKER, "waits", **ON_THE_CPU)
    assert counted["waits"] == {name: WAITS.get(name, 1) for name in counted["waits"]}
    assert set(WAITS) < set(counted["waits"])
    expected = {name: MAY_ADD_INTEGERS.get(name, []) for name in counted["forbidden"]}
    assert counted["forbidden"] == expected


def test_a_bucket_of_several_streams_waits_for_them_on_the_device():
    followed, left_alone = told_by(WORKER, "streams", **ON_THE_CPU)
    assert followed and not left_alone


def test_operations_that_wait_are_found():
    import torch
    from devices.forbidden import Watch

    x = torch.arange(-3.0, 3.0)
    with Watch() as watch:
        x.sum().item()
        x.topk(2)
        x[x > 0] += 1.0
    expected = ["_local_scalar_dense", "topk", "index with a mask", "index_put_ with a mask"]
    assert watch.found == expected
