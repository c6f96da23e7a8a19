"""Runs of the tests: which tests they take, what they leave behind, and what the set-up lacks."""

import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import harness
import pytest
import tiers
from harness import ROOT
from programs import put_program, run
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


BESIDE = (
    "PIL", "atheris", "greenlet", "horovod", "isal", "keras", "matplotlib", "mlflow", "mpi4py",
    "numba", "rich", "sklearn", "tensorboard", "tensorflow", "tf_keras", "torch", "triton", "wandb",
)  # fmt: skip
"""Packages that the extra ``dev`` does not bring."""
COLLECT = f"""
import sys

sys.modules.update(dict.fromkeys({BESIDE!r}))  # which Python cannot import

import pytest

sys.exit(pytest.main(["--quick", "--collect-only", "-qq", "-p", "no:cacheprovider", "tests"]))
"""


@pytest.mark.full
def test_every_test_file_of_the_quick_run_can_be_read_there():
    done = run(sys.executable, "-c", COLLECT, cwd=ROOT, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert "LEFT OUT: the cases of the engine numba (numba is not installed)" in done.stdout


def test_a_folder_that_a_rank_leaves_behind_is_deleted_with_its_launch():
    program = "import harness, tempfile; harness.report(0, tempfile.mkdtemp())"
    (left,) = harness._run([sys.executable], 1, "-c", program).check()
    assert Path(left).parent.parent == Path(tempfile.gettempdir())
    assert not Path(left).parent.exists()


def test_an_interrupt_ends_the_ranks(tmp_path):
    here, began = threading.get_ident(), tmp_path / "began"
    program = f"import os, time; open({str(began)!r}, 'w').write(str(os.getpid())); time.sleep(999)"

    def interrupt():
        while not (began.exists() and began.read_text()):
            time.sleep(0.01)
        signal.pthread_kill(here, signal.SIGINT)

    # Whoever started pytest may have had interrupts ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=interrupt, daemon=True).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            harness._run([sys.executable], 1, "-c", program)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not Path(f"/proc/{began.read_text()}").exists()


def test_a_test_may_leave_a_folder_behind():
    left = Path(tempfile.mkdtemp())
    assert left.parent.name.startswith("hvd-")


@pytest.mark.full
def test_what_a_test_leaves_behind_is_deleted_at_the_end_of_the_run(tmp_path):
    test = f"{__file__}::{test_a_test_may_leave_a_folder_behind.__name__}"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", test]
    others = {key: value for key, value in os.environ.items() if "PYTEST" not in key}
    done = run(*command, cwd=ROOT, variables=others, TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert not list(tmp_path.glob("hvd-*"))


OTHERS = ("g++", "make", "cmake", "mpicxx", "mpirun")
WITHOUT_VENV = """\
case "$2" in
    *print*) echo python3.12 ;;
    *sys.exit*) exit 0 ;;
    *) exit 1 ;;
esac
"""


def complaint_of(folder, python):
    """Return what the script reports to a user who is not root; ``python`` is the interpreter's
    script."""
    programs = {**dict.fromkeys(OTHERS, "exit 0"), "id": "echo 1000", "python3": python}
    for name, text in programs.items():
        put_program(folder / name, text)
    own = {"PYTHON": "python3", "HVD_SPARSE_VENV": str(folder / "venv")}
    own |= {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "XDG_CACHE_HOME": str(folder)}
    done = run(ROOT / "scripts" / "setup", **own)
    assert done.returncode == 1 and not (folder / "venv").exists()
    return done.stderr


def test_a_python_of_another_version_is_not_taken_for_a_missing_package(tmp_path):
    said = complaint_of(tmp_path, "exit 1")
    assert "no Python 3.10 to 3.12 found" in said and "packages are missing" not in said


def test_missing_packages_of_python_are_those_of_the_interpreter_in_use(tmp_path):
    said = complaint_of(tmp_path, WITHOUT_VENV)
    assert "sudo apt-get update && sudo apt-get install -y python3.12-venv python3.12-dev" in said
