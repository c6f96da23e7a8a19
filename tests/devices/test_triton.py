"""The engine triton, without a GPU: by its interpreter, and compiled for GPUs that are not here."""

import json

import pytest
from forks import interpreted, run_worker
from installed import has_triton, with_triton

pytestmark = [
    pytest.mark.skipif(not has_triton(), reason="triton is not installed"),
    pytest.mark.full,
]

NVIDIA = ("cuda:70", "cuda:80", "cuda:90", "cuda:100")
AMD = "hip:gfx942"


def work(worker, *task):
    return run_worker(f"devices.{worker}", *task, **interpreted())


@pytest.mark.parametrize("task", ["take", "looks", "assemble"])
def test_whatever_order_programs_run_in_the_bits_are_the_references(task):
    done = work("triton_worker", task)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("task", "mutant", "words"),
    [
        ("take", "the order of programs", "what stays"),
        ("take", "a list longer than the aim allows", "what stays"),
        ("looks", "the moments", "the moments are others"),
        ("assemble", "another order of ranks", "the sum has other bits"),
        ("assemble", "a tensor's surplus", "what is surplus did not go back"),
    ],
)
def test_a_broken_engine_is_found_by_it(task, mutant, words):
    done = work("triton_worker", task, mutant)
    assert done.returncode == 1
    assert words in done.stderr


def test_a_gpu_has_this_engine_by_default():
    done = work("triton_worker", "default")
    assert done.returncode == 0, done.stderr


def test_each_vector_is_moved_once_and_a_bucket_takes_four_launches():
    """At one entry in a thousand, three tensors, two ranks; by sectors of 32 bytes."""
    done = work("triton_worker", "transfers")
    assert done.returncode == 0, done.stderr
    moved = json.loads(done.stdout)
    assert 3.0 <= moved["select"] <= 3.1
    assert 1.0 <= moved["assemble"] <= 1.1
    assert moved["select launches"] == 3
    assert moved["assemble launches"] == 1


def test_no_launch_waits_for_the_device_or_reads_it_on_the_host():
    done = work("launch_worker")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert len(told["found"]) == 7
    for what, seen in told["found"].items():
        assert (seen["waits"], seen["forbidden"]) == (0, []), what
        passes = ["take_blocks", "add_up_counts", "order_taken"]
        assert seen["launches"] == (["assemble_blocks"] if "sums" in what else passes), what
    assert told["planted"]["waits"] == 1
    assert told["planted"]["forbidden"] == ["_local_scalar_dense"]


@pytest.mark.parametrize("target", [*NVIDIA, AMD])
def test_compiled_code_rounds_as_the_reference_and_spills_nothing(target):
    done = run_worker("devices.triton_ahead", target, **with_triton())
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    wrong = {name: got for name, got in found["kernels"].items() if got["fused"] + got["flushed"]}
    assert wrong == {}
    assert {name: got["spilled"] for name, got in found["kernels"].items() if got["spilled"]} == {}
    assert found["kernels"]["take_blocks float32"]["wide"], "16 bytes at a time"
    if target != AMD:
        assert found["fused on purpose"], "the search for fused operations finds none anywhere"
