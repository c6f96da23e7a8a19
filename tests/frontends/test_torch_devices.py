"""Gradients on a device have the bits of those on the CPU, for every method; on real ranks."""

from __future__ import annotations

import pytest
from frontends._method_cases import BUILT, METHODS, STEPS
from frontends._outcomes import measured
from harness import launch

RANKS = 2
LAWS = (
    "float64",
    "float16",
    "bfloat16",
    "training",
    "groups_of_horovods",
    "tensors_that_travel_together",
    "an_optimizer_handed_over",
    "a_dense_warm_up",
    "a_nan_on_one_rank",
    "a_loss_scale",
    "a_checkpoint_to_and_from_the_cpu",
    "a_gradient_in_another_layout",
)


@pytest.fixture(scope="module")
def outcome():
    return launch("frontends/torch_devices.py", RANKS, "mpi", limit_s=240)


@pytest.mark.parametrize("case", [*METHODS, *BUILT, *LAWS])
def test_the_device_gives_the_bits_of_the_cpu(outcome, case):
    for result in measured(outcome, case):
        expected, found = result["expected"], result["found"]
        for key in set(expected) - {"ways", "waits"}:
            assert found[key] == expected[key], key


@pytest.mark.parametrize("case", [*METHODS, *BUILT, "training"])
def test_every_way_is_told(outcome, case):
    for result in measured(outcome, case):
        assert result["expected"]["ways"] == ["host"]
        assert result["found"]["ways"] == ["staged"]


def test_a_staged_tensor_is_waited_for_once(outcome):
    for result in measured(outcome, "topk"):
        assert result["found"]["waits"] == 3


def test_a_loss_scale_is_asked_for_once_a_step(outcome):
    for result in measured(outcome, "a_loss_scale"):
        assert result["found"]["asked"] == STEPS


def test_the_first_use_says_once_that_it_is_experimental(outcome):
    assert outcome.output.count("tested on a pretend device") == RANKS
