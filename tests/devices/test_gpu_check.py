"""``scripts/gpu-check`` where there is no GPU: it says so, and what it would run there does run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from installed import is_installed
from programs import run_python

from benchmarks._gpu_page import draw, page, table
from benchmarks.gpu_check import judge

pytestmark = pytest.mark.skipif(not is_installed("torch"), reason="torch is not installed")

ROOT = Path(__file__).resolve().parents[2]
WORKER = str(ROOT / "tests" / "devices" / "gpu_worker.py")


def test_without_a_gpu_nothing_counts_as_passed(tmp_path):
    page = tmp_path / "gpu.md"
    done = subprocess.run(
        [str(ROOT / "scripts" / "gpu-check"), "--page", str(page)],
        env={**os.environ, "PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 3, done.stdout + done.stderr
    assert "NOT RUN" in done.stdout
    assert "passed" not in done.stdout
    assert not page.exists()


def test_the_times_that_it_would_take_are_numbers(tmp_path):
    done = run_python(WORKER, "times", "torch", "20000", HVD_SPARSE_TEST_DEVICE="cpu")
    assert done.returncode == 0, done.stderr
    lines = json.loads(done.stdout)
    assert len(lines) == 4
    timed = {"add_", "ours", "torch.topk", "DGC, sampled threshold", "Gaussian-k"}
    assert all(timed < set(each) and min(each.values()) > 0 for each in lines)
    told = table(lines, "torch")
    assert "| 20,000 | 0.0001 |" in told and "Gaussian-k" in told
    if is_installed("matplotlib"):
        picture = draw({"torch": lines}, tmp_path / "gpu.png")
        assert picture is not None and picture.stat().st_size > 10_000
        assert "gpu.png" in page("none", [], [told], picture)
    assert draw({}, tmp_path / "none.png") is None


def test_a_law_is_judged_by_what_came_of_it():
    same = {"expected": {"bits": 1, "waits": 0}, "found": {"bits": 1, "waits": 3}}
    assert judge("x", {"measured": same}, "found") == ""
    assert judge("x", {"measured": same}, "carried") is None  # no NCCL: it was not run
    other = {"expected": {"bits": 1}, "carried": {"bits": 2}}
    assert "other bits" in judge("x", {"measured": other}, "carried")
    assert "x: it hung" in judge("x", {"error": "it hung"}, "found")
    assert judge("collectives", {"measured": {}}, "carried") is None
    assert "other bytes" in judge("collectives", {"measured": {"all": [False, 24, 12]}}, "carried")
