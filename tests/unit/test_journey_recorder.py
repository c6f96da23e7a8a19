"""What ``benchmarks.journey`` counts and draws, on a package whose calls are known."""

from __future__ import annotations

import importlib
import sys

import pytest

from benchmarks.journey.recorder import Call, Counts, recording
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


@pytest.mark.parametrize("ways", [[], [[]], [[Call("a.py", "f", -1, 1)], []]])
def test_a_way_without_calls_is_an_error_and_not_a_goal_that_is_met(ways):
    with pytest.raises(AssertionError, match="nothing of the package was called"):
        described(ways)
