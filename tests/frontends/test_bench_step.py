"""``hvd-sparse bench step --quick`` measures real steps, and writes what it has measured."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from harness import ROOT

PARTS = {"select", "encode", "exchange", "decode", "python"}


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """What a quick run printed, and the folder that it wrote to."""
    folder = tmp_path_factory.mktemp("bench")
    command = [sys.executable, "-m", "hvd_sparse", "bench", "step", "--quick"]
    command += ["--methods", "dense", "dgc", "ldte_bs", "--ranks", "1", "2"]
    run = subprocess.run(
        [*command, "--output", str(folder)], cwd=ROOT, capture_output=True, text=True, timeout=290
    )
    assert run.returncode == 0, run.stderr[-4000:]
    return run.stdout, folder


def test_every_method_is_measured_on_every_number_of_ranks(quick):
    document = json.loads((quick[1] / "step.json").read_text())
    assert document["quick"] is True
    measured = {(each["method"], each["ranks"]): each for each in document["summaries"]}
    assert set(measured) == {(m, r) for m in ("dense", "dgc", "ldte_bs") for r in (1, 2)}
    for (method, _), each in measured.items():
        assert 0 < each["work"]["low"] <= each["work"]["median"] <= each["work"]["high"]
        assert each["floor_ms"]["median"] > 0
        assert set(each["parts"]) == (set() if method == "dense" else PARTS)
        assert all(each["parts"][part]["median"] > 0 for part in each["parts"])
        assert (each["one_pass"] is None) is (method == "dense")


def test_what_is_compressed_was_really_sent_sparse(quick):
    """The rows' tensors are those of the model, half of them compressed."""
    document = json.loads((quick[1] / "step.json").read_text())
    assert {(row["sparse_tensors"], row["dense_tensors"]) for row in document["rows"]} == {(64, 64)}


def test_the_goals_are_printed_as_on_the_page(quick):
    printed, folder = quick
    text = (folder / "step.md").read_text()
    assert "no figure here means anything" in text
    judged = [line for line in text.splitlines() if "the pair of calls |" in line]
    assert len(judged) == 2 and all(line in printed for line in judged)
    assert all(" met |" in line or " missed: " in line for line in judged)
