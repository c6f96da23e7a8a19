"""``scripts/bench accuracy``: a line from the command line, which goes on where it was
stopped; its data and networks, and the page."""

from __future__ import annotations

import importlib
import json
import math
import subprocess
import sys
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

pytestmark = pytest.mark.full
torch = pytest.importorskip("torch")
pytest.importorskip("matplotlib")
LINE = ["--method", "ldte_bs", "--optimizer", "adamw", "--density", "0.01"]
FEW = ["--workers", "2", "--quick", "--seeds", "2"]


@pytest.fixture(scope="module")
def accuracy():
    """The modules of the bench, as one."""
    parts = ("_accuracy_lines", "_accuracy_matrix", "_accuracy_runs", "_accuracy_store")
    found = {}
    for part in (*parts, "accuracy"):
        found |= vars(importlib.import_module(f"benchmarks.{part}"))
    return SimpleNamespace(**found)


@pytest.fixture(scope="module")
def twice(tmp_path_factory):
    """The same line twice: the folder, what each left in its file, and what the second printed."""
    folder = tmp_path_factory.mktemp("accuracy")
    command = [sys.executable, "-m", "benchmarks", "accuracy", *LINE, *FEW]
    found = []
    for _ in range(2):
        run = subprocess.run([*command, "--output", str(folder)], capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        path = folder / "accuracy.json"
        found.append((path.stat().st_mtime_ns, path.read_text()))
    return found, run.stdout


def test_runs_that_are_there_are_not_trained_again(twice):
    found, _ = twice
    assert found[0] == found[1]
    assert len(json.loads(found[0][1])["runs"]) == 4


def test_the_line_has_dense_beside_it_and_what_was_sent(twice, accuracy, tmp_path):
    found, printed = twice
    path = tmp_path / "accuracy.json"
    path.write_text(found[1][1])
    results = accuracy.Store(path).results
    (dense,) = {run.line for run in results if run.line.method == "dense"}
    (sparse,) = {run.line for run in results if run.line.method != "dense"}
    row = accuracy.row_of(accuracy.Wanted(sparse, 2), results)
    assert row.density == pytest.approx(0.01, rel=0.3)
    beside = accuracy.row_of(accuracy.Wanted(dense, 2), results)
    assert row.nbytes < beside.nbytes / 10
    pairs = np.subtract(beside.scores, row.scores)
    assert row.difference == pytest.approx(pairs.mean())
    assert row.error == pytest.approx(pairs.std(ddof=1) / np.sqrt(2))
    assert "| adamw | ldte_bs | 0.01 | 2 | 40 |" in printed


class Told(dict):
    """Results of runs that are told, in a store's place."""

    @property
    def results(self):
        return self

    def add(self, run, result):
        raise AssertionError(f"{run} was to be made")


class Made(Told):
    """Results that may be added to."""

    def add(self, run, result):
        self[run] = result


class Pool:
    """Runs that end as told."""

    def __init__(self, scores):
        self._scores = scores

    def submit(self, _, run):
        future = Future()
        future.set_result(_result(self._scores[run.rate]))
        return future


def _result(score):
    return {"score": score, "loss": 1.0, "curve": [[5, score]], "density": None, "bytes": 1}


def test_a_search_takes_the_best_rate_and_no_number_for_the_worst(accuracy):
    line = accuracy.dense_line("digits", "sgd")
    told = {0.1: 20.0, 0.2: 90.0, 0.4: 95.0, 0.8: math.nan}
    store = Told({accuracy.Run(line, rate, 0): _result(score) for rate, score in told.items()})
    assert accuracy.Bench(store, 1)._rate_of(line, None) == 0.4


def test_a_search_goes_on_while_the_best_rate_is_at_an_end(accuracy):
    line = accuracy.dense_line("digits", "sgd")
    store = Made({accuracy.Run(line, rate, 0): _result(90.0 + rate) for rate in (0.1, 0.2, 0.4)})
    bench = accuracy.Bench(store, 1)
    assert bench._rate_of(line, Pool({0.8: 95.0, 1.6: 80.0})) == 0.8
    assert {run.rate for run in store} == {0.1, 0.2, 0.4, 0.8, 1.6}


def test_perplexity_is_paired_with_dense_of_the_same_seed(accuracy):
    dense = accuracy.dense_line("gpt", "adamw")
    line = replace(dense, method="topk", density=0.01, way="handed", workers=4)
    results = {
        accuracy.Run(each, 0.004, seed): _result(score)
        for each, scores in ((dense, (1.5, 1.7)), (line, (1.51, 1.7)))
        for seed, score in enumerate(scores)
    }
    row = accuracy.row_of(accuracy.Wanted(line, 2), results)
    assert row.worse == pytest.approx((100 * math.expm1(0.01), 0.0), abs=1e-9)
    assert row.mean == pytest.approx(math.exp(1.605))


def test_a_seed_that_dense_has_not_is_not_compared(accuracy):
    dense = accuracy.dense_line("gpt", "adamw")
    line = replace(dense, method="topk", density=0.01, way="handed", workers=4)
    results = {accuracy.Run(line, 0.004, seed): _result(1.5) for seed in (0, 1)}
    results[accuracy.Run(dense, 0.004, 0)] = _result(1.5)
    row = accuracy.row_of(accuracy.Wanted(line, 2), results)
    assert (row.worse, row.difference, row.error) == ((), None, None)


def test_more_workers_than_examples_stand_beside_a_dense_line_of_as_large_steps(accuracy):
    line = accuracy.sparse_line("gpt", "adamw", 0.01)
    few, many = replace(line, workers=8), replace(line, workers=32)
    assert (line.batch, few.batch, many.batch) == (16, 16, 32)
    usual, larger = (
        accuracy.dense_line("gpt", "adamw", workers=each.workers) for each in (few, many)
    )
    assert (usual.batch, larger.batch) == (16, 32) and usual == accuracy.dense_line("gpt", "adamw")
    short = {replace(each, steps=accuracy.SHORT) for each in (usual, larger, few, many)}
    assert short <= {each.line for each in accuracy.matrix()}
    results = {
        accuracy.Run(each, 0.004, seed): _result(score)
        for each, score in ((usual, 1.5), (larger, 1.4), (few, 1.5), (many, 1.4))
        for seed in (0, 1)
    }
    for each in (few, many):
        assert accuracy.row_of(accuracy.Wanted(each, 2), results).worse == (0.0, 0.0)


def test_workers_who_cannot_share_a_step_are_refused(accuracy, tmp_path):
    command = [sys.executable, "-m", "benchmarks", "accuracy", *LINE, "--workers", "3"]
    run = subprocess.run([*command, "--output", str(tmp_path)], capture_output=True, text=True)
    assert run.returncode == 1 and "--workers 3: a step of digits has 64 examples" in run.stderr


def test_a_run_that_fails_is_named(accuracy):
    run = accuracy.Run(accuracy.dense_line("digits", "sgd"), 0.1, 7)
    future = Future()
    future.set_exception(ValueError("broken"))
    pool = SimpleNamespace(submit=lambda *_: future)
    with pytest.raises(RuntimeError, match=r'"seed": 7.*broken'):
        accuracy.Bench(Made(), 1)._make([run], pool)


def test_the_matrix_holds_every_method_with_a_density(accuracy):
    from hvd_sparse.methods import METHODS

    lines = [each.line for each in accuracy.matrix()]
    assert len(set(lines)) == len(lines)
    left_out = {"strom", "terngrad", "signsgd", "radix_select"}
    assert {line.method for line in lines} == set(METHODS) - left_out | {"dense"}
    for optimizer in ("sgd", "momentum", "adamw"):
        for task in ("fashion_mnist", "lstm", "gpt"):
            found = {
                (line.method, line.density)
                for line in lines
                if (line.task, line.optimizer) == (task, optimizer)
            }
            names = ("ldte_bs", "topk", "dgc")
            assert found >= {(name, density) for name in names for density in (0.01, 0.001)}


def test_goals_are_judged_by_the_error_or_the_limit(accuracy):
    goals = importlib.import_module("benchmarks._accuracy_goals")
    line = replace(accuracy.dense_line("digits", "sgd"), method="ldte_bs", way="handed")
    row = accuracy.Row(line, 0.1, (), (90.0, 90.0), (0.2, 0.6), (), None, 1.0)
    assert goals.verdict_of(replace(row, line=replace(line, density=0.01))) == "missed by 0.20"
    assert goals.verdict_of(replace(row, line=replace(line, density=0.001))) == "missed by 0.10"
    near = replace(row, worse=(-0.1, 0.3))
    assert goals.verdict_of(replace(near, line=replace(line, density=0.01))) == "met"


def test_the_overview_has_a_line_a_method_and_a_column_a_density(accuracy):
    overview = importlib.import_module("benchmarks._accuracy_overview").overview_of
    dense = accuracy.dense_line("gpt", "adamw", accuracy.SHORT)
    line = replace(dense, density=0.001, way="handed", workers=4)
    row = accuracy.Row(line, 0.1, (), (1.0, 1.0), (1.0, 2.0), (), None, 1.0)
    rows = [replace(row, line=replace(line, method=each)) for each in ("topk", "dgc")]
    others = {"way": "kept"}, {"workers": 8}, {"steps": 2400}, {"is_real": True}
    rows += [replace(row, line=replace(line, method="sbc", **other)) for other in others]
    assert overview(rows) == ""
    whole = replace(line, method="ef_sign", density=None, optimizer="sgd")
    *_, topk, dgc, sign = overview([*rows, replace(row, line=whole)]).splitlines()
    assert topk == "| topk |  |  |  | +1.50 ± 0.50 % |  |  |"
    assert dgc.startswith("| dgc |") and sign == "| ef_sign |  |  |  |  | +1.50 ± 0.50 % |  |"


def test_more_workers_stand_beside_each_other(accuracy):
    workers_of = importlib.import_module("benchmarks._accuracy_overview").workers_of
    dense = accuracy.dense_line("gpt", "adamw", accuracy.SHORT)
    line = replace(dense, method="ldte_bs", density=0.01, way="handed", workers=4)
    row = accuracy.Row(line, 0.1, (), (1.0, 1.0), (1.0, 2.0), (), None, 1.0)
    other = replace(row, line=replace(line, density=0.001))
    assert workers_of([row, other]) == ""
    many = replace(row, line=replace(line, workers=32), worse=(3.0, 3.0))
    text = workers_of([row, other, many])
    assert "| worse by | density | 4 workers | 32 workers |" in text
    assert text.endswith("| gpt, adamw | 0.01 | +1.50 ± 0.50 % | +3.00 ± 0.00 % |\n")


def test_goals_are_of_what_is_advised_and_what_closes_one_stands_behind_it(accuracy):
    goals = importlib.import_module("benchmarks._accuracy_goals")
    line = accuracy.advised_line("gpt", "adamw", 0.001)
    row = accuracy.Row(line, 0.1, (), (1.0, 1.0), (1.0, 2.0), (), None, 1.0)
    no_goals = {"steps": accuracy.SHORT}, {"warmup": 0.0}, {"way": "kept"}, {"method": "topk"}
    others = [replace(row, line=replace(line, **other)) for other in no_goals]
    longer = replace(row, line=replace(line, steps=2400), worse=(-1.0, -1.0))
    *_, missed, met = goals.goals_table([longer, *others, row]).splitlines()
    assert missed.startswith("| gpt, adamw | ldte_bs, warm-up | 0.001 | 4 | 1,200 | +1.50 ± 0.50")
    assert "2,400 (2 times)" in met and met.endswith("| met |")


def test_a_row_whose_best_rate_has_an_untried_neighbour_is_not_searched(accuracy):
    line = accuracy.dense_line("digits", "sgd")
    row = accuracy.Row(line, 0.2, (0.1, 0.2, 0.4), (90.0,), (), (), None, 1.0)
    assert accuracy.is_searched(row)
    assert not accuracy.is_searched(replace(row, rate=0.4))
    assert not accuracy.is_searched(replace(row, tried=(0.1, 0.2)))


def test_the_workers_share_what_dense_sees(accuracy):
    simulated = importlib.import_module("benchmarks._accuracy_simulated")
    line = replace(accuracy.dense_line("digits", "sgd", 6), method="topk", density=1.0)
    sparse = replace(line, way="kept", workers=4)
    run = accuracy.Run(replace(line, method="dense", density=None), 0.2, 3)
    dense = simulated.simulate(run)
    everything = simulated.simulate(replace(run, line=sparse))
    assert everything["loss"] == pytest.approx(dense["loss"], rel=1e-4)


@pytest.mark.parametrize("name", ["CharacterLSTM", "SmallGPT"])
def test_networks_of_text_guess_from_what_came_before(name):
    networks = importlib.import_module("benchmarks._accuracy_networks")
    torch.manual_seed(0)
    network = getattr(networks, name)()
    characters = torch.randint(90, (2, 16))
    changed = characters.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 90
    with torch.no_grad():
        before, after = network(characters), network(changed)
    assert torch.allclose(before[:, :9], after[:, :9], atol=1e-6)
    assert not torch.allclose(before[:, 9:], after[:, 9:], atol=1e-3)


def test_text_is_drawn_alike_for_any_number_of_workers_and_held_out():
    data = importlib.import_module("benchmarks._accuracy_data")
    text = data.Text("".join(chr(97 + i * i % 26) for i in range(20_000)) + "z" * 1000)
    assert torch.equal(text.draw(1, 5, 16), text.draw(1, 5, 16))
    assert not torch.equal(text.draw(1, 5, 16), text.draw(1, 6, 16))
    assert int(text.draw(0, 0, 10_000).max()) < len(text._train) - data.WINDOW
    assert set(text._held.flatten()[-64:].tolist()) == {text.alphabet.index("z")}


def test_curves_are_of_every_method_at_both_densities():
    from hvd_sparse.methods import METHODS
    from hvd_sparse.methods.spelling import read_method

    lines = list(importlib.import_module("benchmarks.curves").lines())
    named = {line.method.partition(",")[0] for line in lines}
    assert named == {"dense", *METHODS} and len(set(lines)) == len(lines)
    for line in lines[1:]:
        wants = read_method(line.method).takes_density
        assert (line.density in (0.01, 0.001)) is wants


def test_curves_go_on_where_they_were_stopped(tmp_path):
    bench = importlib.import_module("benchmarks.curves")
    options = SimpleNamespace(quick=True, output=tmp_path)
    assert bench.run(options) == 0
    made = (tmp_path / "curves.json").stat().st_mtime_ns
    rows = [row for row in (tmp_path / "curves.md").read_text().splitlines() if "| `" in row]
    assert [row.split("|")[1].strip(" `") for row in rows] == ["dense", *2 * ["ldte_bs"], "signsgd"]
    assert bench.run(options) == 0
    assert (tmp_path / "curves.json").stat().st_mtime_ns == made, "nothing was trained again"
