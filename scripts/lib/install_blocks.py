"""Run the documentation's install blocks, each in an empty environment and a copy of the checkout.

The argument is an empty folder to work in.  The exit code is 1 if a block fails.  Blocks end with
``hvd-sparse doctor``.  If no framework is installed, this command says so and exits with 1; a block
has not failed then.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from blocks import Block, blocks_for  # noqa: E402

NOT_COPIED = shutil.ignore_patterns(".*", "site", "dist", "build", "*.egg-info", "demo-output")
LIMIT_S = 900


def run(block: Block, folder: Path) -> str:
    """Run a block; return its name and last output if it fails, otherwise an empty text."""
    checkout, environment = folder / "checkout", folder / "venv"
    shutil.copytree(ROOT, checkout, ignore=NOT_COPIED)
    venv.create(environment, with_pip=True)
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    variables["PATH"] = f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
    variables["PIP_CONSTRAINT"] = str(ROOT / "scripts" / "versions.txt")
    done = subprocess.run(
        ["sh", "-e", "-c", block.text],
        cwd=checkout,
        env=variables,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    said = done.stdout + done.stderr
    is_only_bare = done.returncode == 1 and "torch is not installed" in said
    is_well = done.returncode == 0 or is_only_bare
    return "" if is_well and "Traceback" not in said else f"{block.name}\n{said[-3000:]}"


if __name__ == "__main__":
    for number, block in enumerate(blocks_for("install")):
        wrong = run(block, Path(sys.argv[1]) / str(number))
        if wrong:
            sys.exit(wrong)
        print(f"    {block.name}: installs, and what it starts runs")
