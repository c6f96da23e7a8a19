"""``python -m benchmarks``: what it lists, and quick runs of benches."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from plain import run_plain
from programs import run_python, run_quick_bench

from benchmarks.__main__ import BENCHES, PROGRAMS

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.full


def test_the_benches_are_listed_without_being_loaded():
    listed = run_python("-m", "benchmarks", "--help")
    assert listed.returncode == 0
    for name in (*BENCHES, *PROGRAMS):
        assert f"  {name} " in listed.stdout


@pytest.mark.parametrize("name", [*(module for module, _ in BENCHES.values()), *PROGRAMS])
def test_every_bench_is_there(name):
    assert (ROOT / "benchmarks" / f"{name}.py").exists() or (ROOT / "benchmarks" / name).is_dir()


def test_a_bench_that_does_not_exist_is_an_error():
    done = run_python("-m", "benchmarks", "nothing")
    assert done.returncode == 2 and "invalid choice: 'nothing'" in done.stderr


def test_without_its_packages_the_error_says_what_to_install(tmp_path):
    done = run_plain(tmp_path, "select", module="benchmarks")
    assert done.returncode == 1 and "pip install -e" in done.stderr, done.stderr


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
    command = [sys.executable, "-m", "benchmarks", "select", "--variants", "--quick"]
    run = subprocess.run([*command, "--output", str(tmp_path)], capture_output=True, text=True)
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
    from benchmarks.watching import _added as added

    def paired(*added_ms: float) -> list[tuple[float, float]]:
        return [(0.010, 0.010 + 1e-3 * each) for each in added_ms]

    told = added(paired(2, 0.5, 0.7, 4, 3, 0.5, 0.9, 6), 4, 0.010)
    assert told["record_ms"] == pytest.approx(5 + 2.5)
    assert told["between_ms"] == pytest.approx(0.6)
    assert told["share"] == pytest.approx((7.5 + 2 * 0.6) / 40)
    assert added(paired(2, 4, 3), 1, 0.010)["share"] == pytest.approx(0.3)
