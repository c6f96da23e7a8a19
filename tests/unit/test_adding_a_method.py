"""A method that is added as the page says holds the laws; a step that is left out is named."""

from __future__ import annotations

import re

import pytest
from adding import added, steps, tried
from blocks import blocks_for

pytestmark = pytest.mark.full

LAWS = ("tests/conformance/test_selectors.py", "tests/conformance/test_cases.py")
NAMES = ("tests/unit/test_configuration.py", "tests/unit/test_methods_page.py")
CHOSEN = "mean_multiple and not curve or every_registered or every_method"
"""All that is known by the method's name, but for the curve, which takes half a minute, and what
compares the lists of methods."""


def test_a_method_that_is_added_as_the_page_says_holds_the_laws(tmp_path):
    done = tried(added(tmp_path), CHOSEN, *LAWS, *NAMES)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    passed = int(re.search(r"(\d+) passed", done.stdout)[1])
    assert passed > 40
    assert "skipped" not in done.stdout


@pytest.mark.parametrize(
    ("step", "test"),
    [
        (1, "No module named 'hvd_sparse.selectors.mean_multiple'"),
        (2, "test_every_registered_part_has_a_case_and_every_case_a_part[selector]"),
        (4, "test_every_method_has_a_page_and_a_place_in_the_table"),
        (7, "test_every_method_has_a_page_and_a_place_in_the_table"),
    ],
)
def test_a_step_that_is_left_out_is_named(step, test, tmp_path):
    files = LAWS[1:] + NAMES
    done = tried(added(tmp_path, without=step), "every_registered or every_method", *files)
    assert done.returncode != 0
    assert test in done.stdout + done.stderr


def test_the_blocks_of_adding_are_those_of_the_steps():
    marked = [block.text for block in blocks_for("adding")]
    of_steps = [block.text for _, blocks in steps().values() for block in blocks]
    assert [text for text in of_steps if text in marked] == marked
    assert len(of_steps) == len(marked) + 1, "the part itself also runs by itself"
    assert list(steps()) == list(range(1, 8))
