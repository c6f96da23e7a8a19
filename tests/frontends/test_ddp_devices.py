"""DistributedDataParallel with gradients on a device: staged, by name, with the CPU's bits."""

from __future__ import annotations

from functools import cache

import pytest
from frontends._outcomes import measured
from harness import Outcome, launch

RANKS = 2
CASES = ("topk", "ldte_bs", "small_buckets", "bucket_view", "oktopk", "nan")


@cache  # a launch for all tests
def launched(group: str) -> Outcome:
    return launch("frontends/ddp_devices.py", RANKS, "torchrun", group)


@pytest.mark.parametrize("group", ["both", "alone"])
@pytest.mark.parametrize("case", CASES)
def test_the_device_gives_the_bits_of_the_cpu(case: str, group: str) -> None:
    for result in measured(launched(group), case):
        assert result["found"]["applied"] == result["expected"]["applied"]
        assert result["found"]["finite"] == result["expected"]["finite"]
        assert all(result["found"]["finite"]) is (case != "nan")


@pytest.mark.parametrize("group", ["both", "alone"])
def test_every_tensor_is_told_to_be_staged_and_why(group: str) -> None:
    for result in measured(launched(group), "topk"):
        assert result["expected"]["ways"] == ["host"]
        assert result["found"]["ways"] == ["staged"]
        (why,) = result["found"]["because"]
        assert "buckets of its own" in why
