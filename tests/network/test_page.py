"""The page of the network bench: settings are added, measured anew, and kept."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.network import page
from benchmarks.network.spans import PHASES


def setting(rate: str, ours_s: float, controller: str = "gloo") -> dict[str, Any]:
    row = {**dict.fromkeys(PHASES, 0.0), **{f"{name}_processor": 0.0 for name in PHASES}}
    row |= {"round": 0, "mean_total": 0.1, "all_threads": 0.1, "received": 1e6}
    wire = {"alone_mbit_s": {"long": 1.0, "medium": 1.0, "small": 1.0}, "ring_mbit_s": [1.0]}
    return {
        **{
            "rate": rate,
            "model": "resnet50",
            "compute": "none",
            "hosts": 4,
            "controller": controller,
            "command": "it",
        },
        **{"wire": wire, "load": 0.0, "reports": {"auto": {"verdict": "sparse it is"}}},
        "rows": [
            {**row, "method": "dense", "total": 10.0},
            {**row, "method": "auto", "total": ours_s},
        ],
    }


def options(output: Path, *, append: bool) -> argparse.Namespace:
    return argparse.Namespace(
        output=output,
        append=append,
        hosts=4,
        controller="gloo",
        density=0.001,
        backward_ms=80.0,
        rounds=1,
        steps=1,
    )


def test_what_is_measured_anew_takes_the_place_of_what_was(tmp_path: Path) -> None:
    output = tmp_path / "net"
    document = page.begun(options(output, append=False))
    for one in (setting("1gbit", 1.0), setting("none", 1.0), setting("1gbit", 1.0, "mpi")):
        page.add(document, one)
    page.write(document, output)
    again = page.begun(options(output, append=True))
    page.add(again, setting("1gbit", 0.1))
    page.write(again, output)
    settings = json.loads(output.with_suffix(".json").read_text(encoding="utf-8"))["settings"]
    assert [(each["rate"], each["controller"]) for each in settings] == [
        *[("1gbit", "gloo"), ("none", "gloo"), ("1gbit", "mpi")]
    ]
    assert settings[0]["summary"]["dense"]["times_ours"]["median"] == 100.0
    assert page.begun(options(output, append=False))["settings"] == []


def test_a_goal_is_met_or_missed_by_what_was_measured(tmp_path: Path) -> None:
    by_mpi = [setting("none", 1.0, "mpi"), setting("1gbit", 1.0, "mpi")]
    document = {
        "made_with": {},
        "settings": [setting("1gbit", 0.1), setting("none", 100.0), *by_mpi],
    }
    page.write(document, tmp_path / "net")
    text = (tmp_path / "net.md").read_text(encoding="utf-8")
    hundred, ten, tenth = (f"{times} ({times} to {times})" for times in ("100.00", "10.00", "0.10"))
    assert f"| 1gbit, none, over dense | 50 | {hundred} | {ten} | met by Gloo alone |" in text
    assert f"| unshaped, none, over dense | 0.95 | {tenth} | {ten} | met by MPI alone |" in text
    assert "| 100mbit, none, over dense | 150 | not measured | not measured |  |" in text
    assert "auto: sparse it is." in text


def test_of_a_goal_that_is_missed_the_nearer_controller_counts(tmp_path: Path) -> None:
    document = {"made_with": {}, "settings": [setting("1gbit", 1.0), setting("1gbit", 0.5, "mpi")]}
    page.write(document, tmp_path / "net")
    text = (tmp_path / "net.md").read_text(encoding="utf-8")
    missed = (
        "missed by 2.5 times by MPI: it would be a step of 200 ms, "
        "and the threads of one rank work 100 ms"
    )
    assert (
        "| 1gbit, none, over dense | 50 | 10.00 (10.00 to 10.00) | 20.00 (20.00 to 20.00) | "
        f"{missed} |" in text
    )
