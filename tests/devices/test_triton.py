"""The engine triton, without a GPU: by its interpreter, and compiled for GPUs that are not here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from installed import has_triton, with_triton
from programs import run_python

pytestmark = pytest.mark.skipif(not has_triton(), reason="triton is not installed")

DEVICES = Path(__file__).parent
NVIDIA = ("cuda:70", "cuda:80", "cuda:90", "cuda:100")
AMD = "hip:gfx942"


def work(script, *task):
    """Run a worker; what triton warns of is its own affair."""
    script = str(DEVICES / script)
    return run_python("-W", "ignore", script, *task, limit_s=200, **with_triton())


@pytest.mark.parametrize("task", ["take", "looks", "assemble"])
def test_whatever_order_programs_run_in_the_bits_are_the_references(task):
    done = work("triton_worker.py", task)
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
    done = work("triton_worker.py", task, mutant)
    assert done.returncode == 1
    assert words in done.stderr


def test_each_vector_is_moved_once_and_a_bucket_takes_four_launches():
    """At one entry in a thousand, three tensors, two ranks; by sectors of 32 bytes."""
    done = work("triton_worker.py", "transfers")
    assert done.returncode == 0, done.stderr
    moved = json.loads(done.stdout)
    assert 3.0 <= moved["select"] <= 3.1
    assert 1.0 <= moved["assemble"] <= 1.1
    assert moved["select launches"] == 3
    assert moved["assemble launches"] == 1


@pytest.mark.parametrize("target", [*NVIDIA, AMD])
def test_compiled_code_rounds_as_the_reference_and_spills_nothing(target):
    done = work("triton_ahead.py", target)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    wrong = {name: got for name, got in found["kernels"].items() if got["fused"] + got["flushed"]}
    assert wrong == {}
    assert {name: got["spilled"] for name, got in found["kernels"].items() if got["spilled"]} == {}
    assert found["kernels"]["take_blocks float32"]["wide"], "16 bytes at a time"
    if target != AMD:
        assert found["fused on purpose"], "the search for fused operations finds none anywhere"
