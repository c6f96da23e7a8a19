"""The page of merged layers: which steps count, and what is said of the ways."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.network import merging
from benchmarks.network.merged_ways import WAYS
from benchmarks.network.options import create_parser, parse
from benchmarks.network.spans import PHASES

SECONDS = {"mgs": 0.2, "all": 0.4, "greedy": 0.2, "wfbp": 0.3, "default": 0.1}


def result(rounds: int = 6) -> dict[str, Any]:
    """Two steps of every way in every round, of which the first takes a second longer."""
    nothing = {**dict.fromkeys(PHASES, 0.0), **{f"{name}_processor": 0.0 for name in PHASES}}
    rows = [
        {
            **nothing,
            "method": way,
            "round": number,
            "exchange": SECONDS[way] + is_first + 1e-3 * number,
            "received": 1e6,
            "mean_total": 0.1,
            "send": 0.05,
        }
        for number in range(rounds)
        for way in WAYS
        for is_first in (True, False)
    ]
    return {"rows": rows, "reports": {way: {"messages": 3} for way in WAYS}}


def test_the_step_behind_a_change_of_groups_does_not_count() -> None:
    rows = {row["way"]: row for row in merging.rows_of(result())}
    assert set(rows) == set(WAYS) == set(merging.SHOWN)
    for way, row in rows.items():
        assert row["measured_s"]["high"] == pytest.approx(SECONDS[way] + 5e-3)
        assert row["wait_ms"] == pytest.approx(50)
    assert rows["mgs"]["times_mgs"]["median"] == 1
    assert rows["all"]["times_mgs"]["low"] > 1.9 and rows["default"]["times_mgs"]["high"] < 0.6


def test_the_page_says_where_merging_brings_nothing(tmp_path: Path) -> None:
    where = {"rate": "1gbit", "hosts": 2, "model": "lstm", "compute": "busy", "density": 0.001}
    rows = [{**where, "command": "it", **row} for row in merging.rows_of(result())]
    words = merging.in_words(rows)
    assert "Of 1 settings" in words
    assert "than `all` in 1 and slower in 0" in words
    assert "than `default` in 0 and slower in 1" in words
    assert "than `greedy` in 0 and slower in 0" in words
    options = argparse.Namespace(
        output=tmp_path / "merging", hosts=2, controller="gloo", density=0.001, backward_ms=80.0,
        rounds=6, steps=2,
    )  # fmt: skip
    merging.write(rows, options)
    text = (tmp_path / "merging.md").read_text(encoding="utf-8")
    assert "## lstm, 2 hosts, 1gbit, busy, density 0.001" in text
    told = json.loads((tmp_path / "merging.json").read_text(encoding="utf-8"))["rows"]
    assert [row["way"] for row in told] == list(merging.SHOWN)


def test_gradients_that_come_all_at_once_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert create_parser().parse_args(["--merging"]).merging
    monkeypatch.setattr("sys.argv", ["scripts/bench-network", "--merging", "--compute", "none"])
    with pytest.raises(SystemExit):
        parse()
    assert "--merging: --compute asleep or busy" in capsys.readouterr().err
