"""``hvd-sparse advise`` under ``horovodrun`` and ``mpirun``: it measures the ranks, and rank 0
speaks."""

from __future__ import annotations

import json

import pytest
from harness import launch_command

from hvd_sparse.cli import main

MODEL = ["--model", "resnet50", "--backward", "80ms"]
ASKED = ["--density", "0.001", "0.01", "--exchange", "allgather", "oktopk"]
EXCHANGES = {"allgather", "gtopk", "oktopk", "shared_index"}
LIMIT_S = 300

pytestmark = pytest.mark.timeout(LIMIT_S + 20)


def document(output):
    """The one that was printed, without the launcher's labels and what else there is."""
    label = "[0]<stdout>:"
    lines = [line.removeprefix(label) for line in output.splitlines()]
    start, end = lines.index("{"), lines.index("}")
    assert lines.count("{") == 1, "one rank speaks"
    return json.loads("\n".join(lines[start : end + 1]))


def check_measured(measured):
    assert measured["world_size"] == 2
    kinds = {"allgather", "allreduce", "allreduce_dense", "allreduce_fp16", "alltoall"}
    assert set(measured["lines"]) == kinds
    whats = [each["what"] for each in measured["samples"]]
    computed = {what: whats.count(what) for what in whats if what not in kinds}
    handed = {
        f"{how}{what}": 1
        for how in ("", "optimizer: ", "compressor: ")
        for what in ("submit", "collect")
    }
    assert computed == {
        **{f"{exchange}: {what}": 4 for exchange in EXCHANGES for what in ("select", "settle")},
        **handed,
    }
    assert set(measured["work"]["exchanges"]) == EXCHANGES - {"allgather"}
    assert {whats.count(kind) for kind in kinds} <= {
        2,
        3,
    }  # the longest is left out where it would take too long
    for each in measured["samples"]:
        assert 0 <= each["low_s"] <= each["median_s"] <= each["high_s"]
        assert each["low_s"] > 0 or "settle" in each["what"], (
            "what collectives take is taken out there"
        )


def test_what_is_measured_is_advised_on_as_if_it_were_told(capsys, tmp_path, monkeypatch):
    """The same costs from a file give the same advice."""
    costs = tmp_path / "costs.json"
    outcome = launch_command(
        2,
        "gloo",
        "advise",
        *MODEL,
        *ASKED,
        "--quick",
        "--json",
        "--save",
        str(costs),
        limit_s=LIMIT_S,
    )
    assert outcome.code == 0, outcome.output[-3000:]
    told = document(outcome.output)
    check_measured(told["measured"])
    assert json.loads(costs.read_text()) == told.pop("measured")
    for name in ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert (
        main(["advise", *MODEL, *ASKED, "--world-size", "2", "--costs", str(costs), "--json"]) == 0
    )
    assert json.loads(capsys.readouterr().out) == told


def test_without_a_model_it_tells_the_costs():
    outcome = launch_command(2, "mpi", "advise", "--quick", "--json", limit_s=LIMIT_S)
    assert outcome.code == 0, outcome.output[-3000:]
    check_measured(document(outcome.output))


def test_one_rank_is_told_to_be_more():
    outcome = launch_command(1, "mpi", "advise", "--measure", limit_s=LIMIT_S)
    assert outcome.code == 1
    assert "start several" in outcome.output
