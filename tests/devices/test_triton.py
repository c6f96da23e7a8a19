"""The engine triton, without a GPU: by its interpreter, and compiled for GPUs that are not here."""

import pytest
from forks import interpreted, run_worker, told_by
from installed import has_triton, with_triton

pytestmark = [
    pytest.mark.skipif(not has_triton(), reason="triton is not installed"),
    pytest.mark.full,
]

NVIDIA = ("cuda:70", "cuda:80", "cuda:90", "cuda:100")
AMD = "hip:gfx942"


WORKER = "devices.triton_worker"


@pytest.mark.parametrize("task", ["passes", "assemble"])
def test_whatever_order_programs_run_in_the_bits_are_the_references(task):
    told_by(WORKER, task, **interpreted())


@pytest.mark.parametrize(
    ("task", "mutant", "words"),
    [
        ("passes", "the order of programs", "what stays"),
        ("passes", "a list longer than the aim allows", "what stays"),
        ("passes", "the moments", "the moments are others"),
        ("assemble", "another order of ranks", "the sum has other bits"),
        ("assemble", "a tensor's surplus", "what is surplus did not go back"),
    ],
)
def test_a_broken_engine_is_found_by_it(task, mutant, words):
    done = run_worker(WORKER, task, mutant, **interpreted())
    assert done.returncode == 1
    assert words in done.stderr


def test_a_gpu_has_this_engine_by_default():
    told_by(WORKER, "default", **interpreted())


def test_each_vector_is_moved_once():
    """At one entry in a thousand, three tensors, two ranks; by sectors of 32 bytes."""
    moved = told_by(WORKER, "transfers", **interpreted())
    assert 3.0 <= moved["select"] <= 3.1
    assert 1.0 <= moved["assemble"] <= 1.1


def test_no_launch_waits_for_the_device_or_reads_it_on_the_host():
    told_by(WORKER, "waits", **interpreted())


@pytest.mark.parametrize("target", [*NVIDIA, AMD])
def test_compiled_code_rounds_as_the_reference_and_spills_nothing(target):
    found = told_by("devices.triton_ahead", target, **with_triton())
    wrong = {name: got for name, got in found["kernels"].items() if got["fused"] + got["flushed"]}
    assert wrong == {}
    assert {name: got["spilled"] for name, got in found["kernels"].items() if got["spilled"]} == {}
    assert found["kernels"]["take_blocks float32"]["wide"], "16 bytes at a time"
    if target != AMD:
        assert found["fused on purpose"], "the search for fused operations finds none anywhere"


def test_steps_with_buckets_at_once_have_the_bits_of_numpy():
    told_by("devices.bucket_worker", "bits", **interpreted())


@pytest.mark.parametrize("method", ["topk", "ldte_bs"])
def test_a_bucket_takes_four_launches_of_the_engines_own_cold_or_warm(method):
    told_by("devices.bucket_worker", "launches", method, **interpreted())
