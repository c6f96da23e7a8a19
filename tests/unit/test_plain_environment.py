"""The tests that need no ranks, where only the packages of the extra ``dev`` are installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[2]
BESIDE = (
    "PIL", "atheris", "greenlet", "horovod", "isal", "keras", "matplotlib", "mlflow", "mpi4py",
    "numba", "rich", "sklearn", "tensorboard", "tensorflow", "tf_keras", "torch", "triton", "wandb",
)  # fmt: skip
"""Packages that the extra ``dev`` does not bring."""
COLLECT = f"""
import sys
from importlib.machinery import PathFinder


class WithoutThem(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] not in {BESIDE!r}:
            return super().find_spec(name, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = WithoutThem

import pytest

sys.exit(pytest.main(["--quick", "--collect-only", "-qq", "-p", "no:cacheprovider", "tests"]))
"""


def test_every_test_file_of_the_quick_run_can_be_read_there():
    done = subprocess.run(
        [sys.executable, "-c", COLLECT],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert "LEFT OUT: the cases of the engine numba (numba is not installed)" in done.stdout
