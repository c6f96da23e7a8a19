"""Runs programs of a test in a separate process."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from installed import python_path

TESTS = Path(__file__).parent


def run_python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **python_path(), **environment},
    )


def run_documented(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = folder / "bin" / "hvd-sparse"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hvd_sparse "$@"\n')
    command.chmod(0o755)
    return subprocess.run(
        ["sh", "-e", "-c", text],
        cwd=folder,
        env={
            **os.environ,
            "PATH": os.pathsep.join(
                [str(command.parent), str(Path(sys.executable).parent), os.environ["PATH"]]
            ),
            "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)]),
            "TF_USE_LEGACY_KERAS": "1",
            "OMP_NUM_THREADS": "1",
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        },
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )


def run_quick_bench(bench: str, folder: Path, *packages: str) -> tuple[str, Path]:
    for package in packages:
        pytest.importorskip(package, reason="the bench needs it", exc_type=ImportError)
    from benchmarks.__main__ import main

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main([bench, "--quick", "--output", str(folder)]) == 0
    return printed.getvalue(), folder
