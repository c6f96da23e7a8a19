"""Whole steps in TensorFlow over the wire: what the bench refuses, counts and writes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip(
    "horovod.torch", reason="the bench is written over Horovod", exc_type=ImportError
)
pytest.importorskip("horovod.tensorflow", reason="this part of it too", exc_type=ImportError)

from _spaces import finish, needs_spaces, start

from benchmarks.network import tensorflow_page
from benchmarks.network.options import parse
from benchmarks.network.specs import split

FRONTEND = ["--frontend", "tensorflow"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--plans"], "without --plans"),
        (["--compute", "asleep", "--methods", "dense"], "--compute none or busy"),
        (["--methods", "dense", "topk", "dgc"], "dgc and topk is of Horovod's in PyTorch"),
    ],
)
def test_what_only_pytorch_has_is_refused(arguments, words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench", *FRONTEND, *arguments])
    with pytest.raises(SystemExit):
        parse()
    assert words in capsys.readouterr().err


def test_methods_are_called_as_in_the_other_bench():
    assert split("auto") == ("auto", {})
    assert split("ldte_bs,codec=block16,rollback=false") == (
        "ldte_bs",
        {"codec": "block16", "rollback": False},
    )


def test_times_are_those_of_the_better_of_dense_and_fp16():
    seconds = {"dense": 0.2, "fp16": 0.1, "auto": 0.101}
    rows = [
        {"method": name, "round": r, "total": s} for name, s in seconds.items() for r in (0, 1, 2)
    ]
    lines = tensorflow_page.table({"rows": rows}).splitlines()[2:]
    assert [line.split("|")[3].split()[0] for line in lines] == ["2.000", "1.000", "1.010"]


@needs_spaces
def test_steps_are_measured_and_replicas_compared(tmp_path: Path):
    arguments = [
        *FRONTEND,
        "--hosts",
        "2",
        "--rates",
        "1gbit",
        "--models",
        "transformer",
        "--warmup",
        "1",
        "--compute",
        "busy",
    ]
    arguments += ["--methods", "dense", "ldte_bs,density=0.01", "--rounds", "2", "--steps", "1"]
    arguments += ["--output", str(tmp_path / "tf")]
    code, output = finish(start([sys.executable, "-m", "benchmarks.network", *arguments]), 200)
    assert code == 0, output[-6000:]
    (setting,) = json.loads((tmp_path / "tf.json").read_text())["settings"]
    assert {(row["method"], row["round"]) for row in setting["rows"]} == {
        (method, number) for number in (0, 1) for method in ("dense", "ldte_bs,density=0.01")
    }
    assert all(row["total"] > 0 for row in setting["rows"])
    assert "times the better" in (tmp_path / "tf.md").read_text()
