"""The documentation's commands for several hosts train on a cluster of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from blocks import Block, blocks_for
from harness import LIMIT_S
from installed import horovod_parts

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "network"))
from _spaces import finish, needs_spaces, start  # noqa: E402

from benchmarks.network.cluster import inside  # noqa: E402

RANKS = {"hosts": 4, "slurm": 3}
BLOCKS = [each for where in RANKS for each in blocks_for(where)]


def seen(block: Block, folder: Path) -> dict[str, Any]:
    script = str(ROOT / "tests" / "launch" / "_cluster_documented.py")
    code, output = finish(
        start(inside([sys.executable, script, str(folder), block.name])), LIMIT_S + 120
    )
    assert code == 0, output[-6000:]
    return json.loads((folder / "seen.json").read_text())[block.name]


@needs_spaces
@pytest.mark.parametrize("block", BLOCKS, ids=lambda each: each.name)
def test_a_command_of_the_documentation_runs_on_several_hosts(block, tmp_path):
    controller = "mpi" if "mpirun" in block.text else "gloo"
    if controller not in horovod_parts():
        pytest.skip(f"Horovod was built without {controller}")
    outcome = seen(block, tmp_path)
    assert outcome["code"] == 0, outcome["output"][-4000:]
    for rank in range(RANKS[block.where]):
        told = f"rank {rank} of {RANKS[block.where]} has trained 3 steps"
        assert told in outcome["output"]
