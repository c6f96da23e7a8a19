"""What ``scripts/setup`` reports on a machine that lacks something, before it changes anything."""

import os
import subprocess

from harness import LIMIT_S, ROOT

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
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    own = {"PYTHON": "python3", "HVD_SPARSE_VENV": str(folder / "venv")}
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [ROOT / "scripts" / "setup"],
        env={**os.environ, **own, "PATH": path, "XDG_CACHE_HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 1 and not (folder / "venv").exists()
    return done.stderr


def test_a_python_of_another_version_is_not_taken_for_a_missing_package(tmp_path):
    said = complaint_of(tmp_path, "exit 1")
    assert "no Python 3.10 to 3.12 found" in said and "packages are missing" not in said


def test_missing_packages_of_python_are_those_of_the_interpreter_in_use(tmp_path):
    said = complaint_of(tmp_path, WITHOUT_VENV)
    assert "sudo apt-get update && sudo apt-get install -y python3.12-venv python3.12-dev" in said
