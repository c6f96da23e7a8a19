"""Simulated steps beside measured ones: what is predicted, counted and written."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip(
    "horovod.torch", reason="the bench is written over Horovod", exc_type=ImportError
)

from _spaces import finish, needs_spaces, start

from benchmarks.network import simulated
from benchmarks.network.options import parse
from benchmarks.network.simulated_page import OWN, SCALED, in_words, table
from benchmarks.network.timings import ready
from hvd_sparse.autotune.costmodel.architectures import parameters
from hvd_sparse.registry import EXCHANGES

LINE = {"start_s": 1e-3, "byte_s": 1e-8}
COSTS = {
    "world_size": 2,
    "lines": dict.fromkeys(("allgather", "allreduce", "alltoall"), LINE),
    "work": {},
}
WAYS = ["dense", "fp16", *simulated.exchanges()]


def test_all_exchanges_that_need_no_nodes_are_compared():
    assert set(simulated.exchanges()) == set(EXCHANGES) - {"auto", "hierarchical"}


@pytest.mark.parametrize("compute", ["none", "asleep", "busy"])
def test_the_profile_is_the_backward_pass_that_is_replayed(compute: str):
    listed = parameters("transformer")
    profile = simulated.replayed("transformer", compute, 0.08)
    assert profile.numel == sum(each.numel for each in listed)
    assert profile.is_apart == (compute == "asleep")
    done = dict(
        zip(
            (each.name for each in listed),
            ready("transformer", [(each.name, each) for each in listed]),
        )
    )
    for layer, ready_s in zip(profile.layers, profile.ready_s):
        assert ready_s == pytest.approx(0.0 if compute == "none" else 0.08 * done[layer.name])


def steps(seconds: dict[str, float]) -> list[dict[str, Any]]:
    """Of two rounds, the second half as long again."""
    return [
        {"method": method, "round": number, "total": (1 + number / 2) * total}
        for method, total in seconds.items()
        for number in (0, 1)
    ]


def rows(off: float) -> list[dict[str, Any]]:
    """Measured so many times as long as predicted."""
    profile = simulated.replayed("transformer", "asleep", 0.08)
    points = simulated.predict(profile, COSTS, 3, 0.01)
    methods = {way: way if way in simulated.DENSE else simulated.spec(way, 0.01) for way in WAYS}
    measured = steps({methods[way]: off / 1.25 * points[way]["step_s"] for way in WAYS})
    found = simulated.rows_of(
        measured, [0.01], {OWN: COSTS, SCALED: {**COSTS, "world_size": 3}}, profile, 3
    )
    return [
        {"rate": "1gbit", "hosts": 3, "model": "transformer", "compute": "asleep", **row}
        for row in found
    ]


def test_a_row_a_way_has_what_was_predicted_and_measured():
    found = rows(1.1)
    assert [row["way"] for row in found] == WAYS
    for row in found:
        assert row["over_predicted"] == pytest.approx({"median": 1.1, "low": 0.88, "high": 1.32})
        assert row["measured_s"]["median"] == pytest.approx(1.1 * row["predicted_s"])
    assert table(found).splitlines()[2].endswith(" | 1.10 (0.88 to 1.32) |")


@pytest.mark.parametrize(("off", "near"), [(1.19, 6), (1.21, 0), (0.81, 6), (0.79, 0)])
def test_those_within_a_fifth_are_counted(off: float, near: int):
    assert len(WAYS) == 6
    words = in_words(rows(off))
    assert words.startswith(
        f"Of 6 predictions {near} are within 20 % of what was measured (dense {near // 6} of 1, "
    )


def test_a_pass_that_is_computed_really_is_not_simulated(monkeypatch, capsys):
    monkeypatch.setattr(
        sys, "argv", ["bench", "--simulated", "--compute", "real", "--models", "transformer"]
    )
    with pytest.raises(SystemExit):
        parse()
    assert "known beforehand" in capsys.readouterr().err


@needs_spaces
def test_steps_are_simulated_and_measured_on_hosts(tmp_path: Path):
    arguments = [
        "--simulated",
        "--hosts",
        "2",
        "--rates",
        "1gbit",
        "--models",
        "transformer",
        "--compute",
        "none",
    ]
    arguments += [
        "--rounds",
        "1",
        "--steps",
        "1",
        "--warmup",
        "1",
        "--densities",
        "0.001",
        "--quick",
    ]
    arguments += ["--output", str(tmp_path / "sim")]
    code, output = finish(start([sys.executable, "-m", "benchmarks.network", *arguments]), 300)
    assert code == 0, output[-6000:]
    document = json.loads((tmp_path / "sim.json").read_text())
    assert [row["way"] for row in document["rows"]] == WAYS
    assert all(
        row["predicted_s"] > 0 and row["measured_s"]["median"] > 0 for row in document["rows"]
    )
    assert document["settings"][0]["costs"]["world_size"] == 2
    page = (tmp_path / "sim.md").read_text()
    assert "Of 6 predictions" in page and "taken to more" not in page
    assert (tmp_path / "sim.png").read_bytes().startswith(b"\x89PNG")
