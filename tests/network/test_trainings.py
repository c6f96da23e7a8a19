"""Whole trainings over a wire: when one is as good as dense, and what is not trained twice."""

import json
import math
import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the trainings are PyTorch's")
pytest.importorskip("matplotlib", reason="the bench draws")

from network._spaces import finish, needs_spaces

from benchmarks.accuracy.data import FASHION
from benchmarks.network.options import parse
from benchmarks.network.training_store import Store, Training, tasks
from benchmarks.network.trainings import Bench
from benchmarks.network.trainings_page import (
    Line,
    advised_ms,
    draw_headline,
    goals_table,
    lines_of,
    reached_s,
    step_alone,
    table,
    write_page,
)

CURVE = [(1, 1.0, 80.0), (2, 2.0, 88.0), (3, 3.0, 88.4)]


def run(method="dense", **changed):
    usual = {"task": "perceptron", "hosts": 2, "wire": "1gbit", "density": 0.01, "steps": 3}
    return Training(**{**usual, "method": method, "rate": 0.02, "seed": 0, **changed})


def result(factor=1.0, last=88.4):
    curve = [(step, factor * seconds, score) for step, seconds, score in CURVE[:2]]
    figures = {"step_ms": 1.0, "worked_ms": 1.0, "trained_ms": 1.0, "received": 1000}
    told = {"probe": "a wire", "load": 0.0, "verdict": ""}
    return {"curve": [*curve, (3, 3 * factor, last)], "score": last, **figures, **told}


@pytest.mark.parametrize(
    ("mark", "is_loss", "seconds"),
    [(88.0, False, 2.0), (84.0, False, 1.5), (79.0, False, 1.0), (89.0, False, None),
     (81.0, True, 1.0), (79.0, True, None)],
)  # fmt: skip
def test_a_score_is_reached_on_the_line_between_two_points(mark, is_loss, seconds):
    assert reached_s(CURVE, mark, is_loss=is_loss) == seconds


def cells(line):
    return [cell.strip() for cell in line.split("|")[1:-1]]


def test_a_line_says_how_many_times_as_soon_it_was_and_never_where_it_was_not():
    ours = Line(run("ldte_bs"), [result(0.1), result(0.2)])
    worse = Line(run("topk"), [result(0.5, last=88.1)])
    found = [cells(x) for x in table([Line(run(), [result()]), ours, worse]).splitlines()[2:]]
    assert found[0][-2:] == ["3.0", "1.00"]
    assert found[1][-2:] == ["0.5", "6.67"]  # the median of 0.3 and 0.6 s
    assert found[2][-2:] == ["never", ""] and found[2][-4] != "never"


def test_a_step_is_advised_from_steps_without_horovod(monkeypatch):
    ours = Line(run("ldte_bs"), [result()])
    dense = Line(run(), [{**result(), "gradient_ms": 12.0, "update_ms": 3.0}])
    groups = [[dense, ours]]
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    alone = step_alone(groups, ours.run)
    assert alone == (12.0, 3.0) and step_alone([[Line(run("vgg"), [result()])]], ours.run) is None
    monkeypatch.setattr("os.cpu_count", lambda: 1)  # hosts that share cores
    assert step_alone(groups, ours.run) is None
    usual = advised_ms(ours, alone)
    assert advised_ms(ours, (512.0, 3.0)) == pytest.approx(usual + 500)
    assert advised_ms(ours, (12.0, 503.0)) == pytest.approx(usual + 0.4 * 500)
    assert advised_ms(dense, (12.0, 503.0)) == pytest.approx(advised_ms(dense, alone) + 500)
    assert f"| {usual:,.1f} |" in table(groups[0], alone)
    assert advised_ms(Line(run("dgc"), [result()]), alone) is None


@pytest.mark.parametrize("name", ["perceptron", "vgg"])
def test_a_task_knows_the_size_of_its_network(name):
    task = tasks()[name]
    parameters = list(task.network(None).parameters())
    assert task.parameters == sum(each.numel() for each in parameters)
    assert task.matrices == sum(each.dim() > 1 for each in parameters)


def test_goals_are_of_the_best_of_ours_until_denses_last_score():
    lines = [Line(run(), [result()]), Line(run("fp16"), [result(0.5)])]
    text = goals_table([[*lines, Line(run("ldte_bs"), [result(0.25)])]])
    assert "over dense | ≥ 3 | 4.00 | met |" in text
    assert "over fp16 | ≥ 1.8 | 2.00 | met |" in text
    assert "never there" in goals_table([[*lines, Line(run("ldte_bs"), [result(0.1, 80.0)])]])


def options(output, *arguments):
    return parse(["--train", "perceptron", "--output", str(output), *arguments])


def test_what_the_json_holds_is_not_trained_again(tmp_path, monkeypatch):
    store = Store(tmp_path / "page")
    trained = [run(), run("ldte_bs"), run("ldte_bs", rate=0.04), run("ldte_bs", seed=1)]
    for number, each in enumerate(trained):
        store.results[each] = {**result(last=88.0 + number), "verdict": "sparse it is"}
    page = write_page(store, options(tmp_path / "page"))
    assert "perceptron, 2 hosts, 1gbit, 3 steps" in page and page.count("| `ldte_bs` |") == 1
    assert "`ldte_bs`: sparse it is." in page
    made = "--train perceptron --hosts 2 --seeds 1 --rates 1gbit --steps 3 --methods dense ldte_bs"
    assert f"scripts/bench-network {made}\n" in page
    again = Store(tmp_path / "page")
    assert set(again.results) == set(trained)
    ((dense, ours),) = lines_of(again)
    assert (ours.run.rate, len(ours.results), len(dense.results)) == (0.04, 1, 1)
    bench = Bench(options(tmp_path / "page"))
    monkeypatch.setattr("benchmarks.network.trainings.launch", None)
    assert bench.train(trained[1]) == again.results[trained[1]]


def test_timed_steps_give_the_times_of_a_training_that_is_stored_with_another_bandwidth(
    tmp_path, monkeypatch
):
    bench, launched = Bench(options(tmp_path / "page", "--timed-steps", "2")), []

    def launch(cluster, controller, module, arguments, limit_s):
        launched.append(arguments[-1])
        return {**result(last=1.0), "step_ms": 500.0}

    monkeypatch.setattr("benchmarks.network.trainings.launch", launch)
    monkeypatch.setattr(bench, "_shape", lambda wire: None)
    bench.store.notes.append("A paragraph about these results.")
    assert bench.train(run())["curve"][-1] == (3, 3.0, 1.0)  # nothing is stored yet
    found = bench.train(run(wire="100mbit"))
    assert found["curve"] == [(1, 0.5, 80.0), (2, 1.0, 88.0), (3, 1.5, 1.0)]
    assert launched == ["3", "2"]
    again = Store(tmp_path / "page")
    assert again.notes == bench.store.notes
    known = again.at_another_wire(run(wire="10gbit"))["curve"]
    assert [score for _, _, score in known] == [80.0, 88.0, 1.0]
    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "`dense` (2 steps)" in page and bench.store.notes[0] in page


def test_readmes_picture_has_the_best_peer_and_says_how_many_times_as_soon_ours_is(tmp_path):
    lines = [Line(run(), [result()]), Line(run("fp16"), [result(0.5)])]
    lines += [Line(run("topk"), [result(0.4)]), Line(run("dgc"), [result(0.3, 80.0)])]
    draw_headline([[*lines, Line(run("ldte_bs"), [result(0.25)])]], tmp_path / "head.svg")
    text = (tmp_path / "head.svg").read_text(encoding="utf-8")
    drawn = [comment for comment in re.findall(r"<!-- (.*?) -->", text) if "as soon" in comment]
    assert drawn == ["fp16: 2.0x as soon", "topk: 2.5x as soon", "hvd_sparse: 4.0x as soon"]


def test_a_search_goes_on_while_the_best_rate_is_at_an_end(tmp_path, monkeypatch):
    bench, tried = Bench(options(tmp_path / "page")), []

    def train(each):
        tried.append(each)
        score = math.nan if each.rate > 0.08 else -abs(each.rate - 0.08)
        bench.store.results[each] = {"score": score}
        return bench.store.results[each]

    monkeypatch.setattr(bench, "train", train)
    assert bench.rate_of(run("topk", wire="100mbit")) == pytest.approx(0.08)
    # Trainings of other seeds have no part in the search.
    bench.store.results[run("topk", wire="none", rate=0.02, seed=1)] = {"score": 1.0}
    assert bench.rate_of(run("topk", hosts=4)) == pytest.approx(0.08)  # that of 2 hosts
    assert {(each.wire, each.hosts) for each in tried} == {("none", 2)}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--train", "vgg", "--frontend", "ddp"], "leave --frontend ddp out"),
        (["--train", "vgg", "--methods", "ldte_bs"], "with dense"),
        (["--frontend", "ddp", "--compute", "busy"], "--compute none or asleep"),
        (["--frontend", "ddp", "--methods", "dense", "topk"], "in Horovod's PyTorch alone"),
        (["--density", "{'*': 0.1}"], "take one number"),
        (["--hosts", "1"], "at least 2"),
        (["--quick"], "--quick: has no effect without --train"),
        (["--seeds", "3"], "--seeds: has no effect without --train"),
        (["--train", "vgg", "--backward-ms", "8"], "--backward-ms: has no effect with --train"),
        (["--rates", "1gbit", "5mb"], "--rates: '5mb': a number and one of kbit, mbit, gbit"),
    ],
)
def test_what_is_not_measured_is_refused(arguments, words, capsys):
    with pytest.raises(SystemExit):
        parse(arguments)
    assert words in capsys.readouterr().err


def test_a_short_trial_does_not_replace_the_results():
    assert parse(["--train", "vgg", "--quick"]).output == Path("bench-output/trainings")
    assert parse(["--train", "vgg"]).output == Path("docs/results/trainings")


@needs_spaces
@pytest.mark.skipif(not FASHION.is_dir(), reason="apt-get install dataset-fashion-mnist")
def test_trainings_are_timed_over_the_wire(tmp_path):
    pytest.importorskip("horovod.torch", reason="they run under Horovod", exc_type=ImportError)
    methods = ["dense", "powersgd2", "topk", "dgc", "ldte_bs"]
    arguments = ["--train", "perceptron", "--quick", "--steps", "4", "--rates", "1gbit"]
    arguments += ["--methods", *methods, "--output", str(tmp_path / "train")]
    finish([sys.executable, "-m", "benchmarks.network", *arguments])
    rows = json.loads((tmp_path / "train.json").read_text())["runs"]
    found = {row["training"]["method"]: row["result"] for row in rows}
    assert set(found) == set(methods)
    for each in found.values():
        seconds = [at for _, at, _ in each["curve"]]
        assert [step for step, _, _ in each["curve"]] == [1, 2, 3, 4]
        assert seconds == sorted(seconds) and each["step_ms"] > 0
        assert 0 < each["trained_ms"] <= each["worked_ms"] and each["update_ms"] > 0
    # two ranks: a ring allreduce brings each the gradients once; a slow machine negotiates more
    received = {method: each["received"] for method, each in found.items()}
    assert 1.0 <= received["dense"] / (4 * 5_033_866) < 1.1
    assert 12 * 50_339 <= received["topk"] < received["dense"] / 10
    # a sign and the distance to the next index take about nine bits
    assert 50_339 <= received["ldte_bs"] < received["topk"] / 3
    assert "Fashion-MNIST" in (tmp_path / "train.md").read_text()
    assert (tmp_path / "train.png").stat().st_size > 10_000
