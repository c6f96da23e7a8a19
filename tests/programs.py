"""Runs programs of a test in a separate process."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from harness import LIMIT_S, PATHS
from installed import python_path


def run(
    *command: str | Path,
    cwd: Path | None = None,
    variables: Mapping[str, str] = os.environ,
    **more: str,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, in an environment of ``variables`` and ``more``."""
    return subprocess.run(
        command,
        cwd=cwd,
        env={**variables, **more},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


def put_program(path: Path, script: str) -> None:
    """Write a program in the language of bash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(0o755)


def run_python(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, *arguments, **{**python_path(), **environment})


def run_documented(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = folder / "bin" / "hvd-sparse"
    put_program(command, f'exec "{sys.executable}" -m hvd_sparse "$@"')
    path = [str(command.parent), str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = {
        "PATH": os.pathsep.join(path),
        "PYTHONPATH": os.pathsep.join(PATHS),
        "TF_USE_LEGACY_KERAS": "1",
        "OMP_NUM_THREADS": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    return run("sh", "-e", "-c", text, cwd=folder, **environment)


def run_quick_bench(bench: str, folder: Path, *packages: str) -> tuple[str, Path]:
    for package in packages:
        pytest.importorskip(package, reason="the bench needs it", exc_type=ImportError)
    from benchmarks.__main__ import main

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main([bench, "--quick", "--output", str(folder)]) == 0
    return printed.getvalue(), folder
