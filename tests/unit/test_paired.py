"""Trainings by pairs: which lines are beside which, and what is made of their differences."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch", reason="the bench trains with it")

from benchmarks import paired
from benchmarks._accuracy_tasks import TASKS
from hvd_sparse.density_text import read_density


def test_every_codec_is_beside_float32_values_of_the_same_density():
    pairs = list(paired.codec_pairs(8))
    assert {pair.line.density for pair in pairs} == {0.01, 1 / 64}
    for pair in pairs:
        assert pair.beside.method == "topk" and pair.line.method != "topk"
        assert pair.line.density == pair.beside.density and pair.line.steps == 8


def test_the_density_beside_those_that_hide_sends_as_many_bytes():
    names = dict(paired._compressed(TASKS["gpt"].network()))
    densities = dict.fromkeys(names, 0.01)
    assert paired.hiding_pair(densities, 4).beside.density == pytest.approx(0.01, rel=0.02)
    largest = max(names, key=lambda name: names[name])
    own = paired.hiding_pair({**densities, largest: 1.0}, 4)
    numel = sum(names.values())
    # It runs dense, where an entry takes half the bytes of one with its index.
    expected = (0.5 * names[largest] + 0.01 * (numel - names[largest])) / numel
    assert own.beside.density == pytest.approx(expected, rel=0.02)
    assert read_density(str(own.line.density))[largest] == 1.0


def test_more_workers_are_beside_the_one_dense_training():
    pairs = list(paired.worker_pairs(8))
    assert [pair.line.workers for pair in pairs] == [4, 8, 16, 32]
    assert {pair.beside.method for pair in pairs} == {"dense"} and len(
        {p.beside for p in pairs}
    ) == 1


def test_what_the_example_prints_is_read_by_the_number_of_local_steps():
    printed = (
        "[0]<stdout>:every   1: accuracy 96.89%, 97.11%; 3,719 bytes a step\n"
        "[0]<stdout>:every  16: accuracy 97.11%, 96.44%; 234 bytes a step\n"
    )
    assert paired.read_local_steps(printed) == {
        "1": {"scores": [96.89, 97.11], "bytes": 3719},
        "16": {"scores": [97.11, 96.44], "bytes": 234},
    }


def test_differences_are_told_with_their_standard_error():
    assert paired.difference([1.0, 3.0]) == "+2.00 ± 1.00"
    assert paired.difference([-0.5, -0.5, -0.5]) == "-0.50 ± 0.00"


def test_what_is_kept_is_not_made_again(tmp_path):
    path = tmp_path / "others.json"
    assert paired.Others(path).get("densities", lambda: {"a": 0.5}) == {"a": 0.5}
    assert json.loads(path.read_text()) == {"densities": {"a": 0.5}}
    assert paired.Others(path).get("densities", lambda: pytest.fail("made again")) == {"a": 0.5}
