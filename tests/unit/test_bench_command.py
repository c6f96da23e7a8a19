"""``hvd-sparse bench`` needs a checkout, and says so where there is none."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from programs import run_quick_bench

from hvd_sparse.cli.bench import _checkout
from hvd_sparse.errors import NotInstalled

pytestmark = pytest.mark.full

PACKAGE = Path(_checkout.__file__).parents[2]


def test_a_module_of_the_checkout_is_loaded():
    pytest.importorskip("torch", reason="the module imports it")
    assert _checkout.load("_streams").__file__ == str(PACKAGE.parent / "benchmarks" / "_streams.py")


def test_a_bench_that_does_not_exist_is_an_error():
    with pytest.raises(
        NotInstalled, match=r"benchmarks/nothing\.py is not beside .*: benches need a checkout"
    ):
        _checkout.load("nothing")


def test_without_the_folder_the_error_says_what_to_install(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "hvd_sparse", ignore=shutil.ignore_patterns("__pycache__"))
    program = "from hvd_sparse.cli.bench._checkout import load; load('_streams')"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", program]
    run = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 1
    assert (
        f"NotInstalled: benchmarks/_streams.py is not beside {tmp_path / 'hvd_sparse'}: benches "
        "need" in run.stderr
    )
    assert "pip install -e" in run.stderr


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    packages = ("torch", "matplotlib", "rich")
    return run_quick_bench("select", tmp_path_factory.mktemp("bench"), *packages)


def test_select_prints_every_line_that_it_writes(quick):
    printed, folder = quick
    document = json.loads((folder / "selecting.json").read_text())
    assert document["quick"] is True
    for line in document["lines"]:
        assert line["section"] in printed
        assert line["what"] in printed
        assert (
            0
            < line["milliseconds"]["low"]
            <= line["milliseconds"]["median"]
            <= line["milliseconds"]["high"]
        )
    assert all(f"{row['selector']}, {row['model']}" in printed for row in document["trainings"])


def test_select_judges_what_there_are_goals_for(quick):
    lines = json.loads((quick[1] / "selecting.json").read_text())["lines"]
    judged = [line for line in lines if line["goal"] is not None]
    assert {line["what"] for line in judged} >= {
        "ldte_bs",
        "topk",
        "ldte_bs, rollback",
        "topk, rollback",
        "16 payloads",
    }
    assert {line["what"] for line in judged} >= {
        "torch.topk",
        "DGC, sampled threshold",
        "Gaussian-k",
    }
    assert {line["goal"] for line in judged} >= {
        "≤ 1.3",
        "≤ 2.5",
        "≤ 1.6",
        "≤ 2",
        "≤ 1.5",
        "≤ 3",
        "≥ 10",
        "≥ 15",
        "≥ 30",
    }
    for line in judged:
        value, limit = (
            (line["versus"] or line["times_floor"])["median"],
            float(line["goal"].split()[1]),
        )
        assert line["is_met"] == (
            value <= limit if line["goal"].startswith("≤") else value >= limit
        )


def test_select_draws_and_writes_a_page(quick):
    folder = quick[1]
    assert (folder / "selecting.png").read_bytes().startswith(b"\x89PNG")
    page = (folder / "selecting.md").read_text()
    assert "no figure here means anything" in page
    assert "![Time against size and density](selecting.png)" in page


def test_variants_are_timed_beside_ours(tmp_path):
    for package in ("torch", "matplotlib", "rich"):
        pytest.importorskip(package, reason="the bench needs it")
    command = [sys.executable, "-m", "hvd_sparse", "bench", "select", "--variants", "--quick"]
    run = subprocess.run(
        [*command, "--output", str(tmp_path)], capture_output=True, text=True, timeout=200
    )
    assert run.returncode == 0, run.stderr
    document = json.loads((tmp_path / "selecting-variants.json").read_text())
    page = (tmp_path / "selecting-variants.md").read_text()
    methods = {each["method"] for each in document["steps"]}
    assert {"ldte_bs", "ldte_bs,variant=paper", "redsync,variant=paper"} <= methods
    for each in document["steps"]:
        assert each["times_floor"]["median"] > 0 and each["count_over_k"] > 0
        assert f"`{each['method']}`" in page
    assert "no figure here means anything" in page


def test_telemetry_tells_what_it_adds_at_every_interval(tmp_path):
    printed, folder = run_quick_bench("telemetry", tmp_path, "rich")
    document = json.loads((folder / "telemetry.json").read_text())
    (line,) = document["lines"]
    assert set(line["intervals"]) == {"1", "10"} and document["default_every"] == 100
    assert line["off_ms"] > 0 and line["computing_ms"] == 0
    for told in line["intervals"].values():
        assert isinstance(told["record_ms"], float)
        assert f"{100 * told['share']:.2f} %" in printed


def test_what_telemetry_adds_is_put_together_of_records_and_steps_between_them():
    pytest.importorskip("rich", reason="the module imports it")
    added = _checkout.load("watching")._added

    def paired(*added_ms: float) -> list[tuple[float, float]]:
        return [(0.010, 0.010 + 1e-3 * each) for each in added_ms]

    told = added(paired(2, 0.5, 0.7, 4, 3, 0.5, 0.9, 6), 4, 0.010)
    assert told["record_ms"] == pytest.approx(5 + 2.5)
    assert told["between_ms"] == pytest.approx(0.6)
    assert told["share"] == pytest.approx((7.5 + 2 * 0.6) / 40)
    assert added(paired(2, 4, 3), 1, 0.010)["share"] == pytest.approx(0.3)
