"""Programs that a test runs in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


def run_python(
    *arguments: str, limit_s: float = 120, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run Python with the package and the tests' modules; return what it printed and how it
    ended."""
    path = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=limit_s,
        env={**os.environ, "PYTHONPATH": path, **environment},
    )


def run_quick_bench(bench: str, folder: Path, *packages: str) -> tuple[str, Path]:
    """Run a bench with ``--quick``; return what it printed, and the folder that it wrote to.

    The test is left out where a package that the bench needs is not installed.
    """
    for package in packages:
        pytest.importorskip(package, reason="the bench needs it")
    command = ["-m", "hvd_sparse", "bench", bench, "--quick", "--output", str(folder)]
    run = run_python(*command, limit_s=200)
    assert run.returncode == 0, run.stderr
    return run.stdout, folder
