"""Blocks of the documentation that need no ranks run; a method added by its page holds the laws."""

import os
import re
import shlex
import sys

import pytest
from adding import added, steps, tried
from blocks import ROOT, blocks_for, commands_of
from installed import is_installed
from programs import run, run_documented

from hvd_sparse.telemetry.jsonl import JsonLines

pytestmark = pytest.mark.full

PYTHON = blocks_for("python")


def whole(number):
    block = PYTHON[number]
    if not block.goes_on:
        return block.text
    return re.sub(r"^.*destroy_process_group.*$", "", whole(number - 1), flags=re.M) + block.text


AHEAD = [*PYTHON[1:], None]
LAST = [i for i, after in enumerate(AHEAD) if after is None or not after.goes_on]


@pytest.mark.parametrize("number", LAST, ids=lambda each: PYTHON[each].name)
def test_a_block_of_python_runs(number, tmp_path):
    text = whole(number)
    for framework in re.findall(r"^import (torch|tensorflow)\b", text, re.MULTILINE):
        if not is_installed(framework):
            pytest.skip(f"{framework} is not installed")
    run_block(PYTHON[number], shlex.join([sys.executable, "-W", "error", "-c", text]), tmp_path)


@pytest.mark.parametrize("block", blocks_for("sh"), ids=lambda each: each.name)
def test_a_command_runs(block, tmp_path):
    if "hvd-sparse report" in block.text and not is_installed("matplotlib"):
        pytest.skip("matplotlib is not installed")
    if "python -m benchmarks" in block.text and not is_installed("torch"):
        pytest.skip("torch is not installed, which benches need")
    for name in ("sparse", "dense"):
        sink = JsonLines(str(tmp_path / "runs" / f"{name}.jsonl")).open()
        for step in (1, 50, 100):
            sink.log(step=step, loss=1 / step, bytes_sent=1000)
        sink.close()
    run_block(block, block.text, tmp_path)
    for option in re.findall(r"--?(?:o|png|output) (\S+)", block.text):
        assert (tmp_path / option).exists(), f"{block.name} has not written {option}"


@pytest.mark.parametrize("block", blocks_for("checkout"), ids=lambda each: each.name)
def test_a_command_of_the_checkout_runs_in_it(block):
    variables = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    command = ("sh", "-e", "-c", block.text)
    done = run(*command, cwd=ROOT, variables=variables, HVD_SPARSE_VENV=sys.prefix)
    assert done.returncode == 0, f"{block.name}\n{done.stdout}\n{done.stderr}"
    assert len(re.findall(r"\b\d+ passed", done.stdout, re.MULTILINE)) == len(commands_of(block))


def run_block(block, command, folder):
    done = run_documented(command, folder)
    assert done.returncode == 0, f"{block.name}\n{done.stdout}\n{done.stderr}"


LAWS = ("tests/conformance/test_selectors.py", "tests/conformance/test_cases.py")
NAMES = ("tests/unit/test_configuration.py", "tests/unit/test_variants.py")
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
