"""A Python interpreter with only numpy and hvd_sparse, like most users' first installation."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from harness import ROOT
from programs import run


def run_plain(
    folder: Path, *arguments: str, module: str = "hvd_sparse"
) -> subprocess.CompletedProcess[str]:
    site = folder / "site"
    site.mkdir(exist_ok=True)
    (found,) = map(Path, np.__path__)
    for path in (ROOT / "hvd_sparse", ROOT / "benchmarks", *found.parent.glob("numpy*")):
        if not (site / path.name).exists():
            (site / path.name).symlink_to(path)
    environment = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("HOROVOD_", "OMPI_", "PYTHON"))
    }
    environment["PYTHONPATH"] = str(site)
    command = (sys.executable, "-S", "-m", module, *arguments)
    return run(*command, cwd=folder, variables=environment)
