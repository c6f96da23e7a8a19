"""Blocks and commands of the documentation run on two real ranks, and what they make trains; and
local steps, programs as Horovod's examples have them, and callbacks of Keras."""

import re

import pytest
from _common import check_every_case, launched, measured
from blocks import TRAINING, blocks_for
from programs import run_documented

CONTROLLERS = {"torch": "gloo", "tensorflow": "mpi"}
of_both = pytest.mark.parametrize("frontend", CONTROLLERS)


def outcome(frontend):
    return launched("frontends/user_programs.py", 2, CONTROLLERS[frontend], frontend)


@of_both
def test_every_case_holds_on_every_rank(frontend):
    check_every_case(outcome(frontend))


@of_both
def test_blocks_compress_and_one_of_torch_sends_nothing(frontend):
    results = [measured(outcome(frontend), each.name)[0] for each in blocks_for(frontend)]
    assert sum(bool(each.get("sparse_steps")) for each in results) >= 3
    assert sum(bool(each.get("is_apart")) for each in results) == (frontend == "torch")


COMMANDS = {each.text: each for each in blocks_for("ranks")}


@pytest.mark.parametrize("block", COMMANDS.values(), ids=lambda each: each.name)
def test_a_command_runs_on_two_ranks(block, tmp_path):
    (tmp_path / "train.py").symlink_to(TRAINING)
    done = run_documented(block.text, tmp_path)
    assert done.returncode == 0, f"{block.name}\n{done.stdout}\n{done.stderr}"
    assert "advise" not in block.text or "allgather on 2 ranks" in done.stdout
    if "train.py" in block.text:
        for rank in range(2):
            assert f"rank {rank} of 2 has trained 3 steps" in done.stdout
    for name in re.findall(r"(?:-o|--save) (\S+)", block.text):
        assert (tmp_path / name).stat().st_size > 1000
