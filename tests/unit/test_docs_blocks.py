"""Blocks of the documentation that need no ranks run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from blocks import ROOT, blocks_for, blocks_of
from installed import is_installed


def environment(tmp_path: Path) -> dict[str, str]:
    """Return that of a user who has installed the package."""
    command = tmp_path / "bin" / "hvd-sparse"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hvd_sparse "$@"\n')
    command.chmod(0o755)
    path = os.pathsep.join([str(command.parent), str(Path(sys.executable).parent)])
    return {
        **os.environ,
        "PATH": path + os.pathsep + os.environ["PATH"],
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}",
        "TF_USE_LEGACY_KERAS": "1",
    }


@pytest.mark.parametrize("block", blocks_for("python"), ids=lambda each: each.name)
def test_a_block_of_python_runs(block, tmp_path):
    for framework in re.findall(r"^import (torch|tensorflow)\b", block.text, re.MULTILINE):
        if not is_installed(framework):
            pytest.skip(f"{framework} is not installed")
    run_block(block, [sys.executable, "-W", "error", "-c", block.text], tmp_path)


@pytest.mark.parametrize("block", blocks_for("sh"), ids=lambda each: each.name)
def test_a_command_runs(block, tmp_path):
    run_block(block, ["sh", "-e", "-c", block.text], tmp_path)


def run_block(block, command: list[str], folder: Path) -> None:
    run = partial(subprocess.run, capture_output=True, text=True, timeout=120)
    done = run(command, cwd=folder, env=environment(folder))
    assert done.returncode == 0, f"{block.name}\n{done.stdout}\n{done.stderr}"


def test_marks_are_read():
    page = "<!-- runs: torch, on -->\n\n```python\na = 1\n```\n\ntext\n\n```sh\nls\n```\n"
    first, second = blocks_of(page, "page")
    assert (first.action, first.where, first.goes_on) == ("runs", "torch", True)
    assert (first.name, first.text) == ("page:3", "a = 1\n")
    assert (second.action, second.language) == ("", "sh")
