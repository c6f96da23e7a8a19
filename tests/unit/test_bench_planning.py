"""``hvd-sparse bench planning``, quick: what it writes."""

from __future__ import annotations

import json

import pytest

from hvd_sparse.cli import main

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    pytest.importorskip("torch", reason="benches need it")
    made = tmp_path_factory.mktemp("planning")
    assert main(["bench", "planning", "--quick", "--output", str(made)]) == 0
    return made


def test_no_strategy_beats_the_planner_for_any_model(folder):
    models = json.loads((folder / "planning.json").read_text())["models"]
    assert {row["model"] for row in models} == {
        "resnet50",
        "vgg16",
        "inception_v4",
        "lstm",
        "transformer",
    }
    for row in models:
        assert row["ms"]["exact"] <= min(row["ms"].values()) * (1 + 1e-9)
        assert row["plan"][-1] == row["layers"]


def test_a_page_and_a_picture_are_written(folder):
    page = (folder / "planning.md").read_text()
    assert "![Who computes and who sends when](planning.png)" in page
    assert page.count("| resnet50 |") == 6
    assert (folder / "planning.png").read_bytes().startswith(b"\x89PNG")
