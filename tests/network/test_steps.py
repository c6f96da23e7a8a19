"""Steps over the wire, in each frontend: what is counted, judged and kept."""

import json
import sys

import pytest

pytest.importorskip("horovod.torch", reason="the bench is Horovod's", exc_type=ImportError)
pytest.importorskip("matplotlib", reason="the bench draws")

from installed import horovod_parts
from network._spaces import finish, needs_spaces

from benchmarks.network.options import parse
from benchmarks.network.spans import PHASES
from benchmarks.network.steps import _kept, goals_table, table, write_page
from benchmarks.network.summary import summarize


def setting(rate, ours_s, controller="gloo"):
    row = {**dict.fromkeys(PHASES, 0.0), **{f"{name}_processor": 0.0 for name in PHASES}}
    row |= {"round": 0, "mean_total": 0.1, "all_threads": 0.1, "received": 1e6}
    where = {"rate": rate, "model": "resnet50", "compute": "none", "hosts": 4}
    where |= {"controller": controller, "command": "it", "wire": "a wire", "load": 0.0}
    rows = [{**row, "method": "dense", "total": 10.0}, {**row, "method": "auto", "total": ours_s}]
    made = {**where, "rows": rows, "reports": {"dense": {}, "auto": {"verdict": "sparse it is"}}}
    return {**made, "summary": summarize(made)}


def test_goals_are_judged_by_each_controller_and_those_not_measured_left_out():
    text = goals_table([setting("1gbit", 0.1), setting("1gbit", 0.5, "mpi")])
    assert "1gbit, none, gloo, over dense | ≥ 50 | 100.00 (100.00 to 100.00) | met |" in text
    assert "| 20.00 (20.00 to 20.00) | missed by 2.50 times |" in text
    assert "100mbit" not in text and goals_table([]) == ""


def test_the_page_has_what_was_measured_and_settings_are_kept(tmp_path):
    options = parse(["--output", str(tmp_path / "net")])
    write_page([setting("1gbit", 1.0)], options)
    text = (tmp_path / "net.md").read_text()
    assert "### 4 hosts, 1gbit, resnet50, no compute" in text
    assert "auto: sparse it is." in text and "{{" not in text
    assert _kept(tmp_path / "net") == json.loads((tmp_path / "net.json").read_text())["settings"]


def test_ratios_are_taken_within_rounds():
    taken = {"dense": (0.2, 0.4), "ldte_bs": (0.1, 0.1)}
    rows = [
        {"method": name, "round": r, "total": s, "received": 1e6, "all_threads": s}
        for name, both in taken.items()
        for r, s in enumerate(both)
    ]
    lines = table({"rows": rows, "summary": summarize({"rows": rows})}).splitlines()
    assert lines[2].split("|")[3].strip() == "3.00 (2.00 to 4.00)"
    assert lines[3].split("|")[4].strip() == "3.00 (2.00 to 4.00)"


def measured(tmp_path, *arguments):
    usual = ["--hosts", "2", "--models", "transformer", "--rounds", "1", "--steps", "1"]
    command = [sys.executable, "-m", "benchmarks.network", *usual, *arguments]
    finish([*command, "--output", str(tmp_path / "net")])
    assert (tmp_path / "net.png").stat().st_size > 10_000
    (found,) = json.loads((tmp_path / "net.json").read_text())["settings"]
    return found


@needs_spaces
def test_every_method_is_measured_over_the_wire(tmp_path):
    methods = ["dense", "topk", "ldte_bs"]
    arguments = ["--rates", "100mbit", "--warmup", "1", "--compute", "asleep"]
    found = measured(tmp_path, *arguments, "--methods", *methods)
    summary = found["summary"]
    assert list(summary) == methods
    # two ranks: a ring allreduce brings each the tensor once, an allgather of k = n / 1000 entries
    # 8 or 12 bytes of each
    entries = 9_884_944
    received = {name: figures["received_bytes"] for name, figures in summary.items()}
    assert 1.0 <= received["dense"] / (4 * entries) < 1.1
    # and Horovod's negotiation, of which a slow machine makes more
    assert 12 * entries / 1000 <= received["topk"] < received["dense"] / 20
    assert 8 * entries / 1000 <= received["ldte_bs"] < received["dense"] / 20
    assert 0.0007 < found["reports"]["ldte_bs"]["density_achieved"] < 0.0014
    assert all(figures["phases_ms"]["backward"] > 0 for figures in summary.values())


@needs_spaces
def test_hooks_of_ddp_are_measured_and_their_bytes_are_in_order(tmp_path):
    arguments = ["--frontend", "ddp", "--rates", "1gbit", "--compute", "asleep", "--warmup", "3"]
    methods = ["dense", "powersgd1", "ldte_bs"]
    rows = measured(tmp_path, *arguments, "--methods", *methods)["rows"]
    received = {row["method"]: row["received"] for row in rows}
    assert received["dense"] > 20 * received["ldte_bs"] > 0
    assert received["dense"] > 5 * received["powersgd1"] > 0
    assert all(row["total"] >= 0.08 for row in rows)  # the backward pass that is replayed


@needs_spaces
@pytest.mark.skipif("tensorflow" not in horovod_parts(), reason="Horovod has no TensorFlow")
def test_steps_in_tensorflow_are_measured(tmp_path):
    arguments = ["--frontend", "tensorflow", "--rates", "1gbit"]
    methods = ["dense", "ldte_bs,density=0.01"]
    found = measured(tmp_path, *arguments, "--warmup", "1", "--methods", *methods)
    received = {row["method"]: row["received"] for row in found["rows"]}
    assert received["dense"] > 10 * received["ldte_bs,density=0.01"] > 0
