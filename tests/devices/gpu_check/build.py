"""The Horovod that ``scripts/gpu-check`` runs with: whether it has NCCL, and one that has."""

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
"""Seconds for a build: it downloads 3 GB, and compiles for minutes."""


def sees_gpu() -> bool:
    """Tell whether the driver knows a GPU, whatever torch was built for."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return False
    done = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode == 0 and "GPU" in done.stdout


def has_nccl() -> bool:
    """Tell whether the installed Horovod was built with NCCL, and torch with CUDA."""
    script = (
        "import sys, torch, horovod.torch as hvd; "
        "sys.exit(not (hvd.nccl_built() and torch.version.cuda))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, timeout=300, check=False
    )
    return done.returncode == 0


def wants_build(asked: bool, is_there: bool, has: bool) -> bool:
    """Tell whether to build: where it is asked for, and where a GPU is there and no NCCL."""
    return asked or (is_there and not has)


def build(command: str = str(ROOT / "scripts" / "cuda-build")) -> tuple[Result, str | None]:
    """Build by ``scripts/cuda-build``'s way, in its own folder."""
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
    """What ``scripts/cuda-build`` has put beside its Python."""

    path: list[str]
    cccl: str


def tools(python: str) -> Tools:
    """Return what lies beside the Python that was built."""
    commands = Path(python).parent
    folder = commands.parents[1]
    (headers,) = [*folder.glob("cccl/nvidia/*/include/cccl"), folder / "cccl"][:1]
    return Tools([str(commands), str(folder / "cuda" / "bin")], str(headers))


PYTHON = "python:"
"""What the line of ``scripts/cuda-build`` begins with that names its Python."""
