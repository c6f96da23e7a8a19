"""The runs of the tests: slices take what the short run leaves out; the quick one can be read."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiers
from tiers import TESTS, Slice, select


class Item:
    def __init__(self, file, name, world=None, *marks):
        self.path = TESTS / file
        self.nodeid = f"tests/{file}::{name}"
        self._marks = marks
        if world is not None:
            self.callspec = type("Call", (), {"params": {"world": world}})()

    def get_closest_marker(self, name):
        return name if name in self._marks else None


SHORT = [
    Item("unit/test_a.py", "test_b"),
    Item("frontends/test_torch_training.py", "test_b[2]", (2, "gloo")),
    Item("frontends/test_torch_training.py", "test_b[3]", (3, "mpi", "torch")),
]
LEFT_OUT = [
    *(Item("unit/test_a.py", f"test_{number}", None, "full") for number in range(40)),
    Item("frontends/test_torch_training.py", "test_b[4]", (4, "mpi")),
    Item("frontends/test_torch_training.py", "test_b[2]", (2, "mpi")),
    Item("network/test_cluster.py", "test_b"),
    Item("frontends/test_journey.py", "test_b"),
]


def test_the_short_run_takes_two_ranks_under_gloo_and_three_under_mpi_and_nothing_marked_full():
    assert select([*SHORT, *LEFT_OUT], None) == (SHORT, LEFT_OUT)


def test_ten_slices_take_every_test_that_is_left_out_once():
    taken = [each for part in range(17, 27) for each in LEFT_OUT if each in Slice(f"{part}/10")]
    assert sorted(taken, key=id) == sorted(LEFT_OUT, key=id)


@pytest.mark.parametrize("text", ["", "3", "3/0", "a/b", "-1/10"])
def test_what_is_no_slice_is_refused(text):
    with pytest.raises(pytest.UsageError, match="3/10"):
        Slice(text)


def test_every_file_of_the_short_run_is_there():
    files = {path.name for folder in tiers.RANKS for path in Path(TESTS / folder).glob("test_*.py")}
    assert files >= tiers.SHORT_ON_RANKS


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


@pytest.mark.full
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
