"""``scripts/gpu-check`` where there is no GPU: it says so, and what it would run there does run."""

import shlex
import sys

import pytest
from blocks import blocks_for, commands_of
from forks import ON_THE_CPU, interpreted, told_by
from harness import ROOT
from installed import has_triton, is_installed
from programs import put_program, run

pytest.importorskip("torch")

from devices.gpu_check import checks as checking
from devices.gpu_check import cub
from devices.gpu_check.build import build
from devices.gpu_check.checks import REFUSED, checks, judge
from devices.gpu_check.page import draw, write

pytestmark = pytest.mark.full

WORKER = "devices.gpu_worker"


def documented(block, *options, **environment):
    (command,) = commands_of(block)
    line = shlex.join([*shlex.split(command), *options])
    return run("sh", "-e", "-c", line, cwd=ROOT, PYTHON=sys.executable, **environment)


@pytest.mark.parametrize("block", blocks_for("gpu"), ids=lambda each: each.name)
def test_the_documented_command_passes_on_a_gpu_and_where_none_is_seen_nothing_does(
    block, tmp_path
):
    import torch

    page = tmp_path / "gpu.md"
    done = documented(block, "--page", str(page), CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 3, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    for name in (*checks(), "Horovod with NCCL", "cub::DeviceTopK beside the times"):
        assert f"NOT RUN  {name}" in lines
    assert "passed" not in done.stdout and "torch finds no GPU" in done.stdout
    assert not page.exists()
    if torch.cuda.is_available():
        there = documented(block)
        assert there.returncode == 0, there.stdout + there.stderr


def test_the_times_that_it_would_take_are_numbers(tmp_path):
    lines = told_by(WORKER, "times", "torch", "20000", **ON_THE_CPU)
    assert len(lines) == 4
    timed = {"add_", "ours", "torch.topk", "DGC, sampled threshold", "Gaussian-k"}
    assert all(timed < set(each) and min(each.values()) > 0 for each in lines)
    told = page_of(tmp_path, [], {"torch": lines})
    assert "| 20,000 | 0.0001 |" in told and "Gaussian-k" in told and "gpu.png" in told
    if is_installed("matplotlib"):
        picture = draw({"torch": lines}, tmp_path / "gpu.png")
        assert picture is not None and picture.stat().st_size > 10_000
    assert draw({}, tmp_path / "none.png") is None


@pytest.mark.parametrize("engine", ["torch", "triton"])
def test_the_hidden_waits_that_it_would_look_for_are_looked_for(engine):
    """A bucket's passes and sums among them, which are an engine's own launches."""
    if engine == "triton" and not has_triton():
        pytest.skip("triton is not installed")
    environment = interpreted() if engine == "triton" else ON_THE_CPU
    told_by(WORKER, "waits", engine, **environment)


def test_what_the_build_prints_last_is_its_python(tmp_path):
    script = tmp_path / "build"
    put_program(script, "echo python: /somewhere/python")
    assert build(str(script))[1] == "/somewhere/python"
    put_program(script, "echo no network; exit 1")
    result, python = build(str(script))
    assert python is None and result.verdict == "FAILED" and "no network" in result.words


def test_where_cub_is_not_compiled_the_page_says_why(tmp_path, monkeypatch):
    def told(script):
        put_program(tmp_path / "bin" / "nvcc", script)
        result, library = cub.build(tmp_path)
        assert (library is not None) is (result.verdict == "passed")
        return result

    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    result, library = cub.build(tmp_path)
    assert library is None and (result.verdict, result.words) == ("NOT RUN", cub.NO_COMPILER)
    result = told(
        "echo fatal error: cub/device/device_topk.cuh: No such file or directory >&2; exit 1"
    )
    assert (result.verdict, result.words) == ("NOT RUN", cub.NO_HEADER)
    assert f"| {cub.NAME} | NOT RUN | no cub/device" in page_of(tmp_path, [result], {})
    assert told("echo a fault in the code >&2; exit 1").verdict == "FAILED"
    assert told("exit 0").verdict == "passed"


def page_of(folder, results, times):
    write(folder / "gpu.md", "none", results, times)
    return (folder / "gpu.md").read_text()


def test_placement_is_not_run_where_horovod_has_no_tensorflow(monkeypatch):
    monkeypatch.setattr(checking, "horovod_parts", lambda: frozenset({"torch", "gloo"}))
    (result,) = checks()[checking.PLACEMENT](checking.PLACEMENT)
    assert (result.verdict, result.words) == ("NOT RUN", checking.NO_TENSORFLOW)


def test_a_law_is_judged_by_what_came_of_it():
    same = {"expected": {"bits": 1, "waits": 0}, "found": {"bits": 1, "waits": 3}}
    assert judge("x", {"measured": same}, "found") == ""
    assert judge("x", {"measured": same}, "carried") is None  # no NCCL: it was not run
    other = {"expected": {"bits": 1}, "carried": {"bits": 2}}
    assert "other bits" in judge("x", {"measured": other}, "carried")
    assert "x: it hung" in judge("x", {"error": "it hung"}, "found")
    assert judge("x", {"error": f"InvalidOption: {REFUSED}, and none does"}, "found") == ""
    assert REFUSED in judge("topk", {"error": f"InvalidOption: {REFUSED}"}, "found")
    digits = {"expected": {"applied": 1, "state": 1}, "found": {"applied": 2, "state": 1}}
    assert judge("muon", {"measured": digits}, "found") == ""
    assert "other bits" in judge("topk", {"measured": digits}, "found")
    assert judge("collectives", {"measured": {}}, "carried") is None
    assert "other bytes" in judge("collectives", {"measured": {"all": [False, 24, 12]}}, "carried")
