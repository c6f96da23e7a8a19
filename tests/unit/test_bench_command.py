"""``hvd-sparse bench`` needs a checkout, and says so where there is none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hvd_sparse.cli.bench import _checkout
from hvd_sparse.errors import NotInstalled

PACKAGE = Path(_checkout.__file__).parents[2]


def test_a_module_of_the_checkout_is_loaded():
    assert _checkout.load("_streams").__file__ == str(PACKAGE.parent / "benchmarks" / "_streams.py")


def test_a_bench_that_does_not_exist_is_an_error():
    with pytest.raises(NotInstalled, match=r"benchmarks/nothing\.py is not beside .*: benches need a checkout"):
        _checkout.load("nothing")


def test_without_the_folder_the_error_says_what_to_install(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "hvd_sparse", ignore=shutil.ignore_patterns("__pycache__"))
    program = "from hvd_sparse.cli.bench._checkout import load; load('_streams')"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert run.returncode == 1
    assert f"NotInstalled: benchmarks/_streams.py is not beside {tmp_path / 'hvd_sparse'}: benches need" in run.stderr
    assert "pip install -e" in run.stderr
