"""Benchmarks measure real steps. ``step --quick`` writes what it has measured, and ``journey``
follows a tensor through steps of both frameworks."""

import json

import pytest
from installed import horovod_parts
from programs import run_python

PARTS = {"select", "encode", "exchange", "decode", "python"}


def run(folder, bench, *arguments):
    done = run_python("-m", "benchmarks", bench, *arguments, "--output", str(folder))
    assert done.returncode == 0, done.stderr[-4000:]
    document = json.loads((folder / f"{bench}.json").read_text())
    return done.stdout, document, (folder / f"{bench}.md").read_text()


def check_figures(summary):
    assert summary["floor_ms"]["low"] > 0
    assert 0 < summary["work"]["low"] <= summary["work"]["median"] <= summary["work"]["high"]


def test_a_step_is_measured_with_its_parts_on_any_number_of_ranks(tmp_path):
    printed, document, page = run(
        tmp_path, "step", "--quick", "--methods", "ldte_bs", "--ranks", "1", "2"
    )
    assert document["quick"] is True
    assert [each["ranks"] for each in document["summaries"]] == [1, 2]
    for each in document["summaries"]:
        check_figures(each)
        assert set(each["parts"]) == PARTS
        # The compiled call for a bucket also encodes.
        assert all(each["parts"][part]["median"] > 0 for part in PARTS - {"encode"})
        assert 0 < each["one_pass"] <= 1
    # Half of the small tensors are compressed.
    assert {(row["sparse_tensors"], row["dense_tensors"]) for row in document["rows"]} == {(64, 64)}
    assert "no figure here means anything" in page
    judged = [line for line in page.splitlines() if "us of the pair of calls |" in line]
    assert len(judged) == 2 and all(line in printed for line in judged)
    assert all(" met |" in line or " missed by " in line for line in judged)


def test_methods_of_horovod_and_handed_over_optimizers_are_measured_beside_it(tmp_path):
    methods = ["dense", "dgc", "ldte_bs,optimizer=adam"]
    _, document, page = run(tmp_path, "step", "--quick", "--methods", *methods)
    dense, *ours = document["summaries"]
    for each in (dense, *ours):
        check_figures(each)
    assert (dense["parts"], dense["one_pass"]) == ({}, None)
    assert all(set(each["parts"]) == PARTS for each in ours)
    assert all(f"| `{method}` | " in page for method in methods)


def test_ways_that_take_turns_are_judged_by_the_quotients_of_their_work(tmp_path):
    models = ("large", "ddp", "tensorflow")
    _, document, page = run(tmp_path, "step", "--quick", "--models", *models)
    assert {row["model"] for row in document["beside"]} == set(models)
    for row in document["beside"]:
        assert all(work > 0 for way, work in row.items() if way != "model")
    assert len(document["goals"]) == 6
    assert all(f"| {what} | " in page for what, *_ in document["goals"])


def test_a_journey_judges_every_goal_and_follows_both_calls_of_a_tensor_into_the_kernels(tmp_path):
    if not {"torch", "tensorflow"} <= horovod_parts():
        pytest.skip("Horovod was built without a framework")
    _, document, page = run(tmp_path, "journey")
    judged = {(e["framework"], e["goal"]) for e in document["lines"] if e["goal"]}
    assert judged == {
        ("PyTorch", "≤ 60 calls in ≤ 15 files"),
        ("PyTorch", "≤ 8 calls"),
        ("TensorFlow", "≤ 60 calls in ≤ 18 files"),
    }
    assert page.count(" met |") + page.count(" missed |") == 3
    files = {
        (e["framework"], e["what"].split(",")[0], e["part"]): {file for file, *_ in e["way"]}
        for e in document["ways"]
        if "thirty" not in e["what"]
    }
    takes = [seen for (_, what, part), seen in files.items() if part in ("compress", "send")]
    gives = [seen for (_, what, part), seen in files.items() if part in ("decompress", "receive")]
    assert len(takes) == len(gives) == 3  # two tensors in PyTorch, one in TensorFlow
    dense = files["PyTorch", "dense", "compress"]
    for seen in takes:
        assert any("kernels" in file for file in seen) is (seen is not dense)
    assert "torch/compressor.py: " in page
    for what in ("compressed, alone", "dense"):
        lines = {
            line["part"]: line
            for line in document["lines"]
            if line["framework"] == "PyTorch" and line["what"].startswith(what)
        }
        pair = lines["the pair"]
        assert lines["compress"]["calls"] + lines["decompress"]["calls"] == pair["calls"]
        assert pair["fewest"] <= pair["calls"] <= pair["most"]
