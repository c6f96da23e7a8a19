"""An mpirun that only a silent host keeps from its end is ended; any other is left alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, sys
from hvd_sparse.cli.supervise import supervise
asking = {"good": ["true"], "frozen": ["false"]}
sys.exit(supervise(["sh", "-c", sys.argv[1] + "; exit $?"], os.environ, asking, grace_s=2.0))
"""


def supervised(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """A script whose process bears mpirun's name, under the shell that horovodrun puts before
    it."""
    mpirun = folder / "mpirun"
    mpirun.write_text(f"#!/bin/bash\n{script}\n")
    mpirun.chmod(0o755)
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(mpirun)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.timeout(90)
def test_an_mpirun_without_ranks_that_does_not_end_is_ended_and_the_silent_host_named(tmp_path):
    done = supervised(tmp_path, f"sleep 2\nmkfifo {tmp_path}/never\nread line <>{tmp_path}/never")
    assert done.returncode == 1
    assert "host 'frozen', which does not answer" in done.stderr and "'good'" not in done.stderr


@pytest.mark.timeout(90)
def test_an_mpirun_that_has_ranks_is_left_alone(tmp_path):
    done = supervised(tmp_path, "sleep 5")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.timeout(90)
def test_after_an_error_the_hosts_that_do_not_answer_are_named(tmp_path):
    done = supervised(tmp_path, "sleep 1; exit 7")
    assert done.returncode == 7
    assert "host 'frozen' does not answer" in done.stderr
