"""Launches of ranks, and runs of tests, leave no processes and no temporary folders behind."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import harness
import pytest


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
    name = test_a_test_may_leave_a_folder_behind.__name__
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    others = {key: value for key, value in os.environ.items() if "PYTEST" not in key}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, f"{__file__}::{name}"],
        cwd=harness.ROOT,
        env={**others, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not list(tmp_path.glob("hvd-*"))
