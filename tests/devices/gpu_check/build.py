"""The Horovod of ``scripts/gpu-check``: finds out whether the installed one has NCCL, and otherwise
builds one that has."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from devices.gpu_check.page import Result
from harness import ROOT

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


def tools(python: str) -> tuple[list[str], str]:
    """Return the folders of commands, and the folder of CCCL's headers."""
    commands = Path(python).parent
    folder = commands.parents[1]
    (headers,) = [*folder.glob("cccl/nvidia/*/include/cccl"), folder / "cccl"][:1]
    return [str(commands), str(folder / "cuda" / "bin")], str(headers)


PYTHON = "python:"
"""Beginning of the line in which ``scripts/cuda-build`` prints its Python."""
