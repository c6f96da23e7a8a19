"""The page of trainings on hosts: when a run is as good as dense."""

from __future__ import annotations

import pytest

from benchmarks._accuracy_matrix import dense_line, sparse_line
from benchmarks._accuracy_runs import Run
from benchmarks.network.training import lines_of, rate_of
from benchmarks.network.training_page import reached_s, table

CURVE = [(100, 80.0), (200, 88.0), (300, 88.4)]


def run(method, seconds, curve=CURVE, density=None):
    where = {"task": "fashion_mnist", "rate": "1gbit", "workers": 4, "warmup": 0.0}
    trained = {"steps": 300, "learning_rate": 0.1, "bytes": 1000, "score": curve[-1][1]}
    what = {"method": method, "line": method, "density": density}
    return {**where, **trained, **what, "curve": curve, "seconds_at": seconds}


def test_a_score_is_reached_at_the_first_point_that_has_it():
    assert reached_s(run("dense", [1.0, 2.0, 3.0]), 88.0, is_text=False) == 2.0
    assert reached_s(run("dense", [1.0, 2.0, 3.0]), 89.0, is_text=False) is None
    assert reached_s(run("dense", [1.0, 2.0, 3.0]), 88.0, is_text=True) == 1.0


def test_a_line_says_how_many_times_sooner_it_was_and_never_where_it_was_not():
    worse = [(100, 80.0), (200, 87.95), (300, 88.0)]
    dense, ours = run("dense", [10.0, 20.0, 30.0]), run("ldte_bs", [2.0, 4.0, 6.0], worse, 0.01)
    lines = table([dense, ours]).splitlines()
    cells = [cell.strip() for cell in lines[-1].split("|")[1:-1]]
    assert cells[0] == "ldte_bs, 0.01"
    # half a point less than 88.4 is there at once for both; 88.4 itself is not
    assert cells[-4:] == ["4", "5.00", "never", ""]


def searched(line, best):
    """Return a search's results, of which the rate ``best`` scored most."""
    rates = (best / 2, best, best * 2)
    return {Run(line, rate, 0): result(80.0 + (rate == best)) for rate in rates}


def result(score):
    return {"score": score, "curve": [(1200, score)], "density": 0.01, "bytes": 1}


def test_a_line_is_trained_at_the_rate_that_its_own_search_found_else_at_that_of_ldte_bs():
    usual = sparse_line("fashion_mnist", "momentum", 0.01)
    results = searched(dense_line("fashion_mnist", "momentum"), 0.05) | searched(usual, 0.1)
    rates = {
        line.method: rate_of(line, results)
        for line in lines_of("fashion_mnist", 4)
        if line.density != 0.001
    }
    assert rates == {"dense": 0.05, "fp16": 0.05, "topk": 0.1, "dgc": 0.1, "ldte_bs": 0.1}
    with pytest.raises(SystemExit, match="scripts/bench accuracy"):
        rate_of(usual, {})
