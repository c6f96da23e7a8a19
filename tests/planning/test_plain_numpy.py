"""Commands where numpy is all there is."""

from __future__ import annotations

import json

import pytest
from plain import run_plain

ADVISE = [
    "advise",
    "--model",
    "resnet50",
    "--world-size",
    "4",
    "--density",
    "0.001",
    "--exchange",
    "allgather",
]
SIMULATE = [
    "simulate",
    "--model",
    "resnet50",
    "--world-size",
    "2",
    "16",
    "--bandwidth",
    "1Gbit",
    "--output",
    "out",
]


def test_there_is_nothing_but_numpy(tmp_path):
    """What the other tests rest on."""
    done = run_plain(tmp_path, "bench", "select")
    assert done.returncode == 1 and "is not installed" in done.stderr


@pytest.mark.parametrize("more", [[], ["--hiding", "0.001", "0.01"]], ids=["alone", "hiding"])
def test_advice_is_printed_as_a_table(tmp_path, more):
    done = run_plain(tmp_path, *ADVISE, *more)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    for words in (
        "advised    0.001  index_value  allgather",
        "ms a step",
        "Compress: ldte_bs",
        "assumed, as nobody",
    ):
        assert words in done.stdout


def test_advice_is_printed_as_json(tmp_path):
    done = run_plain(tmp_path, *ADVISE, "--json")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert json.loads(done.stdout)["choice"] == "sparse"


def test_a_simulation_is_tables_and_a_page_and_says_once_that_there_is_no_picture(tmp_path):
    done = run_plain(tmp_path, *SIMULATE)
    assert done.returncode == 0, done.stderr
    assert (
        done.stderr == "no picture: matplotlib is not installed: pip install 'hvd-sparse[plot]'\n"
    )
    assert "1 Gbit/s, flat: ms a step (scaling efficiency)\nranks" in done.stdout
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "simulation.json",
        "simulation.md",
    ]
    page = (tmp_path / "out" / "simulation.md").read_text()
    assert "| ranks | dense | fp16 |" in page and "simulation.png" not in page


def test_a_simulation_is_printed_as_json(tmp_path):
    done = run_plain(tmp_path, *SIMULATE, "--json")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert {point["ranks"] for point in json.loads(done.stdout)["points"]} == {2, 16}
