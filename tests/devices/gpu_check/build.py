"""The Horovod of ``scripts/gpu-check``: finds out whether the installed one has NCCL, and otherwise
builds one that has."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from devices.gpu_check.page import Result

ROOT = Path(__file__).resolve().parents[3]
NAME = "Horovod with NCCL"
LIMIT_S = 5400
"""Time limit of a build in seconds. A build downloads 3 GB and compiles for minutes."""


def sees_gpu() -> bool:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return False
    done = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode == 0 and "GPU" in done.stdout


def has_nccl() -> bool:
    script = (
        "import sys, torch, horovod.torch as hvd; "
        "sys.exit(not (hvd.nccl_built() and torch.version.cuda))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, timeout=300, check=False
    )
    return done.returncode == 0


def wants_build(asked: bool, is_there: bool, has: bool) -> bool:
    return asked or (is_there and not has)


def build(command: str = str(ROOT / "scripts" / "cuda-build")) -> tuple[Result, str | None]:
    try:
        done = subprocess.run([command], capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return Result(NAME, "FAILED", f"not built after {LIMIT_S} s"), None
    said = done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith(PYTHON)]
    if done.returncode or not lines:
        return Result(NAME, "FAILED", said[-3000:]), None
    python = lines[-1].removeprefix(PYTHON).strip()
    return Result(NAME, "passed", "built by scripts/cuda-build"), python


class Tools(NamedTuple):
    path: list[str]
    cccl: str


def tools(python: str) -> Tools:
    commands = Path(python).parent
    folder = commands.parents[1]
    (headers,) = [*folder.glob("cccl/nvidia/*/include/cccl"), folder / "cccl"][:1]
    return Tools([str(commands), str(folder / "cuda" / "bin")], str(headers))


PYTHON = "python:"
"""Beginning of the line in which ``scripts/cuda-build`` prints its Python."""
