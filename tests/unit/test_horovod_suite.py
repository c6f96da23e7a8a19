"""The suite of Horovod's own programs: what it puts into them, and what it tells of them."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the bench needs it")

from benchmarks.horovod_suite import page
from benchmarks.horovod_suite.catalogue import EXAMPLES, TEST_FILES, is_checkout
from benchmarks.horovod_suite.program import base_name
from benchmarks.horovod_suite.reasons import last_line, reason_for
from benchmarks.horovod_suite.rewriting import Compressor, names_of_tests, shorten, with_compression
from benchmarks.horovod_suite.stand_ins import digits

TORCH = Compressor("torch", "topk", "density=0.5")
TENSORFLOW = Compressor("tensorflow", "topk", "density=0.5")

LOOP = """\
import horovod.torch as hvd

compression = hvd.Compression.none
optimizer = hvd.DistributedOptimizer(optimizer,
                                     named_parameters=model.named_parameters(),
                                     compression=compression)
state = hvd.elastic.TorchState(model, optimizer, batch=0)
"""

TAPE = """\
import horovod.tensorflow as hvd

def main():
    model = build()

    @tf.function
    def step(images):
        with tf.GradientTape() as tape:
            loss = model(images)
        tape = hvd.DistributedGradientTape(tape)
        return tape.gradient(loss, model.trainable_variables)
"""


def test_a_loop_gets_its_two_lines_and_its_elastic_state_the_compressor():
    changed = with_compression(LOOP, TORCH).splitlines()
    assert changed[1] == "from hvd_sparse.torch import Compression as Sparse"
    assert changed[4] == "sparse_0 = Sparse.topk(model.named_parameters(), density=0.5)"
    assert changed[7].endswith("compression=sparse_0)")
    assert changed[8].endswith("batch=0, compressor=sparse_0)")


def test_a_tape_gets_its_compressor_outside_of_what_is_traced():
    changed = with_compression(TAPE, TENSORFLOW)
    made = "    sparse_0 = Sparse.topk(lambda: model.trainable_variables, density=0.5)"
    assert changed.index(made) < changed.index("@tf.function") < changed.index("=sparse_0)")


@pytest.mark.parametrize(
    ("call", "made"),
    [
        ("hvd.DistributedOptimizer(opt)", 'for g in opt.param_groups for p in g["params"]'),
        ("hvd.DistributedOptimizer(opt, process_set=even)", "process_set=even"),
        ("hvd.DistributedOptimizer(opt, named_parameters=n(),\n)", "Sparse.topk(n(), density=0.5)"),
    ],
)
def test_a_compressor_is_made_of_what_horovod_is_given(call: str, made: str):
    changed = with_compression(f"import horovod.torch as hvd\nopt = {call}\n", TORCH)
    compile(changed, "changed", "exec")
    assert made in changed and "compression=sparse_0" in changed


def test_the_optimizer_is_handed_over_where_it_is_asked_for():
    changed = with_compression(LOOP, Compressor("torch", "topk", "density=0.5", True))
    assert "density=0.5, optimizer=optimizer)" in changed


def test_numbers_that_are_not_ascii_s_neighbours_are_replaced_and_no_others():
    changed = shorten(
        "steps = 500 // 2  # ≤ 500\ntext, flag = '≤500', True\nrate = 500.0\n", {500: 4}
    )
    assert changed == "steps = 4 // 2  # ≤ 500\ntext, flag = '≤500', True\nrate = 500.0\n"


def test_tests_are_those_that_make_an_optimizer_or_a_tape():
    source = "def test_a():\n    f(hvd.DistributedOptimizer(o))\ndef test_b():\n    f()\n"
    assert names_of_tests(source) == ["test_a"]


def test_a_name_stands_for_its_parameters_too():
    names = ["test_state", "test_gathers"]
    assert base_name("test_state", names) == "test_state"
    assert base_name("test_gathers_1", names) == "test_gathers"
    assert base_name("test_state_options", names) is None


def _outcome(name: str, way: str, end: str, words: str = "") -> dict[str, str]:
    return {"path": "test/a.py", "name": name, "way": way, "end": end, "words": words}


def test_the_verdict_tells_limits_from_what_nobody_has_explained():
    outcomes = [
        _outcome("both", "none", "passed"),
        _outcome("both", "topk", "passed"),
        _outcome("limit", "none", "passed"),
        _outcome("limit", "topk", "failed", "UnsupportedInput: this is a graph of TensorFlow 1."),
        _outcome("open", "none", "passed"),
        _outcome("open", "topk", "failed", "first\nValueError: surprising\n"),
        _outcome("neither", "none", "failed", "ImportError: no such thing"),
        _outcome("neither", "topk", "failed"),
    ]
    rows = {row["name"]: row for row in page.compared(outcomes)}
    assert [name for name, row in rows.items() if row["ours"]] == ["limit", "open"]
    assert rows["limit"]["limit"] and not rows["open"]["limit"]
    assert rows["open"]["why"] == "ValueError: surprising"
    assert rows["neither"]["why"] == "ImportError: no such thing"
    told = page.verdict(list(rows.values()))
    assert "of 3 that pass with Compression.none, 1 pass" in told
    assert "1 by documented limits, 1 otherwise" in told


def test_what_was_not_run_both_ways_is_named():
    outcomes = [_outcome("", "none", "passed"), _outcome("", "topk", "passed")]
    outcomes.append({**outcomes[0], "path": "b.py"})
    assert page.lacking(["test/a.py", "b.py", "c.py"], outcomes) == ["b.py", "c.py"]


def test_a_failure_without_words_is_told_as_such():
    assert last_line("  \n") == "nothing was said"
    assert reason_for("whatever") is None


def test_made_up_digits_can_be_learned():
    pictures, labels = digits(40)
    assert pictures.shape == (40, 28, 28) and pictures.dtype == np.uint8
    rows = pictures.astype(int).sum(2)[:, 4:24:2].argmax(1)
    assert (rows == labels).all()


def test_a_folder_that_is_no_checkout_is_refused(tmp_path: Path, monkeypatch, capsys):
    from benchmarks.horovod_suite import __main__ as command

    assert not is_checkout(tmp_path)
    for path in (*TEST_FILES, *(each.path for each in EXAMPLES[1:])):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    monkeypatch.setattr(sys, "argv", ["suite", str(tmp_path)])
    with pytest.raises(SystemExit):
        command.main()
    assert "has no examples and test" in capsys.readouterr().err
