"""``python -m benchmarks step --quick`` measures real steps, and writes what it has measured."""

import json

from programs import run_python

PARTS = {"select", "encode", "exchange", "decode", "python"}


def run(folder, *arguments):
    command = ("-m", "benchmarks", "step", "--quick", *arguments)
    done = run_python(*command, "--output", str(folder))
    assert done.returncode == 0, done.stderr[-4000:]
    document = json.loads((folder / "step.json").read_text())
    return done.stdout, document, (folder / "step.md").read_text()


def check_figures(summary):
    assert summary["floor_ms"]["low"] > 0
    assert 0 < summary["work"]["low"] <= summary["work"]["median"] <= summary["work"]["high"]


def test_a_step_is_measured_with_its_parts_on_any_number_of_ranks(tmp_path):
    printed, document, page = run(tmp_path, "--methods", "ldte_bs", "--ranks", "1", "2")
    assert document["quick"] is True
    assert [each["ranks"] for each in document["summaries"]] == [1, 2]
    for each in document["summaries"]:
        check_figures(each)
        assert set(each["parts"]) == PARTS
        assert all(part["median"] > 0 for part in each["parts"].values())
        assert 0 < each["one_pass"] <= 1
    # Half of the small tensors are compressed.
    assert {(row["sparse_tensors"], row["dense_tensors"]) for row in document["rows"]} == {(64, 64)}
    assert "no figure here means anything" in page
    judged = [line for line in page.splitlines() if "us of the pair of calls |" in line]
    assert len(judged) == 2 and all(line in printed for line in judged)
    assert all(" met |" in line or " missed by " in line for line in judged)


def test_methods_of_horovod_and_handed_over_optimizers_are_measured_beside_it(tmp_path):
    methods = ["dense", "dgc", "ldte_bs,optimizer=adam"]
    _, document, page = run(tmp_path, "--methods", *methods)
    dense, *ours = document["summaries"]
    for each in (dense, *ours):
        check_figures(each)
    assert (dense["parts"], dense["one_pass"]) == ({}, None)
    assert all(set(each["parts"]) == PARTS for each in ours)
    assert all(f"| `{method}` | " in page for method in methods)


def test_ways_that_take_turns_are_judged_by_the_quotients_of_their_work(tmp_path):
    models = ("large", "ddp", "tensorflow")
    _, document, page = run(tmp_path, "--models", *models)
    assert {row["model"] for row in document["beside"]} == set(models)
    for row in document["beside"]:
        assert all(work > 0 for way, work in row.items() if way != "model")
    assert len(document["goals"]) == 5
    assert all(f"| {what} | " in page for what, *_ in document["goals"])
