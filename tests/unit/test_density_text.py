"""Densities on command lines: numbers, names and globs, and those that a training measures."""

from __future__ import annotations

import argparse

import pytest

from hvd_sparse.density_rule import check_rule
from hvd_sparse.errors import InvalidOption
from hvd_sparse.methods.spelling import density_argument, known_density, read_density, spell_density

READ = {
    "0.01": 0.01,
    "1": 1.0,
    "1e-3": 0.001,
    "conv*=0.01,*=0.001": {"conv*": 0.01, "*": 0.001},
    " fc.weight = 0.5 , * = 0.1": {"fc.weight": 0.5, "*": 0.1},
    "a=b=0.5,*=0.1": {"a=b": 0.5, "*": 0.1},
    "hiding": "hiding",
    "hiding:300": "hiding:300",
}


@pytest.mark.parametrize("text", READ)
def test_a_text_stands_for_a_density_and_is_spelled_as_it(text):
    found = read_density(text)
    assert found == READ[text] and type(found) is type(READ[text])
    assert read_density(spell_density(found)) == found
    check_rule(found, "density")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no number"),
        ("nothing", "no number"),
        ("0", r"in \(0, 1\]"),
        ("2", r"in \(0, 1\]"),
        ("nan", r"in \(0, 1\]"),
        ("conv*=,*=0.1", "no number"),
        ("conv*=0.1,0.2", "names no tensor"),
        ("=0.1", "names no tensor"),
        ("*=0.1,*=0.2", "names '\\*' twice"),
        ("*=1.5", r"density for '\*' is 1.5"),
        ("hiding:0.1", "hiding:300"),
    ],
)
def test_other_texts_are_refused_and_say_what_would_do(text, words):
    with pytest.raises(InvalidOption, match=words):
        read_density(text)
    with pytest.raises(argparse.ArgumentTypeError, match=words):
        density_argument(text)


def test_nothing_is_measured_where_nothing_trains():
    assert known_density("*=0.01") == {"*": 0.01}
    with pytest.raises(
        argparse.ArgumentTypeError, match="give a number, or a number for each name"
    ):
        known_density("hiding")


def test_a_bench_takes_densities_by_name():
    pytest.importorskip("torch", reason="the bench needs it")
    from benchmarks.network.options import create_parser

    assert create_parser().parse_args(["--density", "conv*=0.1,*=0.01"]).density == {
        "conv*": 0.1,
        "*": 0.01,
    }
