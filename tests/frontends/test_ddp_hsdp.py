"""Why there is no hook for HSDP: what FSDP2 hands its all-reduce hook has been summed already."""

from __future__ import annotations

from functools import cache

import pytest
from harness import Outcome, launch

pytest.importorskip("torch.distributed.fsdp", reason="FSDP2 is PyTorch's")


@cache  # a launch for all tests
def launched() -> Outcome:
    return launch("frontends/ddp_hsdp.py", 2, "torchrun")


def test_between_replicas_the_hook_comes_behind_the_sum_so_no_rank_can_keep_anything_back() -> None:
    first, second = (each["replicated"] for each in launched().check())
    assert first["own"] != second["own"]
    assert first["hooked"] == second["hooked"] == first["applied"]
    both = [sum(pair) / 2 for pair in zip(first["own"], second["own"], strict=True)]
    assert first["hooked"] == both


def test_on_a_mesh_of_one_dimension_the_hook_comes_before_anything_else_sums_the_shard() -> None:
    first, second = (each["sharded"] for each in launched().check())
    both = [sum(pair) / 2 for pair in zip(first["own"], second["own"], strict=True)]
    assert first["hooked"] + second["hooked"] == both  # a half each, and no other rank has it
