"""``hvd-sparse bench accuracy``: a line from the command line, which goes on where it was
stopped."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from hvd_sparse.cli.bench import _checkout

pytest.importorskip("horovod.torch")
LINE = [
    "--method",
    "ldte_bs",
    "--optimizer",
    "adamw",
    "--density",
    "0.01",
    "--workers",
    "2",
    "--quick",
    "--seeds",
    "2",
]


@pytest.fixture(scope="module")
def accuracy():
    return _checkout.load("accuracy")


@pytest.fixture(scope="module")
def twice(tmp_path_factory):
    """The same line twice: what the second wrote, and when the files of its runs were written."""
    folder = tmp_path_factory.mktemp("accuracy")
    command = [
        sys.executable,
        "-m",
        "hvd_sparse",
        "bench",
        "accuracy",
        *LINE,
        "--output",
        str(folder),
    ]
    times = []
    for _ in range(2):
        run = subprocess.run(command, capture_output=True, text=True, timeout=280)
        assert run.returncode == 0, run.stderr
        times.append(
            {path.name: path.stat().st_mtime_ns for path in (folder / "accuracy").glob("*.json")}
        )
    return folder, times, run.stdout


@pytest.mark.timeout(600)
def test_runs_that_are_there_are_not_trained_again(twice):
    _, times, _ = twice
    assert times[0] == times[1]
    assert len(times[0]) == 4


def test_the_line_has_dense_beside_it_and_what_was_sent(twice):
    folder, _, printed = twice
    dense, sparse = json.loads((folder / "accuracy.json").read_text())["rows"]
    assert (dense["what"], sparse["what"]) == ("dense", "ldte_bs")
    assert sparse["density_achieved"] == pytest.approx(0.01, rel=0.3)
    assert sparse["bytes_per_step"] < dense["bytes_per_step"] / 10
    pairs = np.subtract(sparse["accuracies"], dense["accuracies"])
    assert sparse["difference"] == pytest.approx(pairs.mean())
    assert sparse["error"] == pytest.approx(pairs.std(ddof=1) / np.sqrt(2))
    assert "| adamw | ldte_bs | 0.01 |" in printed
    assert (folder / "accuracy.md").read_text().strip() in printed


def test_a_line_takes_the_rate_with_which_its_first_seed_ends_best(accuracy, tmp_path):
    line = accuracy.Line("digits", "sgd", "dense", None, False, 0.0, 2, 1)
    bench = accuracy.Bench(tmp_path, 1)
    for rate, reached in ((0.1, 90.0), (0.2, 95.0), (0.4, 20.0)):
        bench.results[accuracy.Run(line, rate, 0)] = {"accuracy": reached}
    assert bench.search([line], None, is_short=False) == {line: 0.2}


def test_all_lines_hold_every_method_density_and_optimizer(accuracy):
    options = SimpleNamespace(task="digits", workers=4, epochs=None, quick=False, real=False)
    lines = accuracy.lines_of(options)
    assert len(set(lines)) == len(lines)
    for optimizer in ("sgd", "momentum", "adamw"):
        for density in (0.01, 0.001):
            found = {
                str(line)
                for line in lines
                if (line.optimizer, line.density) == (optimizer, density)
            }
            assert found >= {
                "ldte_bs",
                "ldte_bs, optimizer kept",
                "ldte_bs, warm-up",
                "topk",
                "dgc",
            }
