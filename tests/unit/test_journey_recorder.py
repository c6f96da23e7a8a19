"""What ``benchmarks.journey`` counts and draws, on a package whose calls are known."""

from __future__ import annotations

import importlib
import sys

import pytest

from benchmarks.journey.bench import Goal, lines_of_torch
from benchmarks.journey.recorder import Call, Counts, recording, tree
from benchmarks.journey.ways import described

UPPER = """
import json

from known.below.lower import Box, numbers, twice

def enter(x):
    json.dumps([x])
    box = Box(x)
    return box.value + helper(x) + sum(numbers(2))

def helper(x):
    return twice(x) + twice(x)

def fail(x):
    return Box(x).broken()
"""
LOWER = """
from dataclasses import dataclass

def twice(x):
    return 2 * x

def numbers(n):
    for i in range(n):
        yield i

@dataclass
class Box:
    held: int

    @property
    def value(self):
        return self.held

    def broken(self):
        raise ValueError("broken")
"""


@pytest.fixture
def upper(tmp_path, monkeypatch):
    """A module of a package, and the package's folder."""
    package = tmp_path / "known"
    (package / "below").mkdir(parents=True)
    for file, source in (("upper.py", UPPER), ("below/lower.py", LOWER)):
        (package / file).write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("known.upper"), package
    for name in [name for name in sys.modules if name.split(".")[0] == "known"]:
        del sys.modules[name]


def test_calls_of_the_package_are_recorded_in_their_order_with_their_callers(upper):
    module, package = upper
    with recording(package) as way:
        assert module.enter(3) == 16
    lower = "below/lower.py"
    # enter, Box.value, helper, twice twice, and numbers, which is entered once more than it yields;
    # neither json nor the generated __init__
    assert way[:5] == [
        Call("upper.py", "enter", -1, 1),
        Call(lower, "Box.value", 0, 2),
        Call("upper.py", "helper", 0, 2),
        Call(lower, "twice", 2, 3),
        Call(lower, "twice", 2, 3),
    ]
    assert way[5:] == [Call(lower, "numbers", 0, 2)] * 3
    assert Counts.of(way) == Counts(calls=8, files=2, changes=3, depth=3)


def test_after_an_error_the_next_call_is_nobodys(upper):
    module, package = upper
    with recording(package) as way:
        with pytest.raises(ValueError, match="broken"):
            module.fail(1)
        module.helper(1)
    assert [(call.function, call.caller) for call in way[:3]] == [
        ("fail", -1),
        ("Box.broken", 0),
        ("helper", -1),
    ]


def test_nothing_is_recorded_outside(upper):
    module, package = upper
    before = sys.getprofile()
    with recording(package) as way:
        pass
    module.enter(1)
    assert way == []
    assert sys.getprofile() is before


def test_the_tree_has_a_line_for_every_file_that_is_called_into(upper):
    module, package = upper
    with recording(package) as way:
        module.enter(3)
    assert tree(way) == [
        "upper.py: enter, helper",
        "└─ below/lower.py: Box.value, twice x 2, numbers x 3",
    ]


def test_the_way_that_most_steps_take_stands_for_all():
    short, usual, long = ([Call("a.py", "f", -1, 1)] * calls for calls in (3, 5, 9))
    told = described([long, usual, short, usual])
    assert (told["fewest"], told["most"]) == (3, 9)
    assert [Call(*call) for call in told["way"]] == usual


@pytest.mark.parametrize("ways", [[], [[]], [[Call("a.py", "f", -1, 1)], []]])
def test_a_way_without_calls_is_an_error_and_not_a_goal_that_is_met(ways):
    with pytest.raises(AssertionError, match="nothing of the package was called"):
        described(ways)


def test_a_pair_is_both_ways_together_and_of_thirty_the_mean_is_judged():
    def told(*files):
        return described(
            [[Call(file, "f", -1 if not i else 0, 1 + i) for i, file in enumerate(files)]]
        )

    found = {"alone.weight": {"compress": told("a", "b"), "decompress": told("b", "c", "c")}}
    for number in range(30):  # of which the first does all the work
        takes, gives = (("a", "b"), ("b",)) if number == 0 else (("a",), ("a",))
        found[f"among.{number}.weight"] = {"compress": told(*takes), "decompress": told(*gives)}
    lines = list(lines_of_torch(found))
    (pair,) = [x for x in lines if "alone" in x.what and x.part == "the pair"]
    assert pair.counts == Counts(calls=5, files=3, changes=2, depth=3)
    assert [call.caller for call in pair.way] == [-1, 0, -1, 2, 2]
    assert pair.verdict()[1:] == ["5 calls in 3 files", "≤ 60 calls in ≤ 15 files", "met"]
    mean = lines[-1]
    assert mean.counts == Counts(calls=2, files=2, changes=0, depth=2)
    assert (mean.fewest, mean.most) == (2, 3)
    assert [
        x.what.split()[1] for x in lines if x.what.endswith("step") and x.part == "compress"
    ] == ["alone", "first", "middle", "last"]


@pytest.mark.parametrize(
    ("calls", "files", "is_met"), [(120, 22, True), (121, 22, False), (120, 23, False)]
)
def test_a_goal_is_about_calls_and_files(calls, files, is_met):
    assert Goal(120, 22).is_met(Counts(calls, files, 0, 0)) is is_met
