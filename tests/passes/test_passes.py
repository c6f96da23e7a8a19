"""Bounds on how often a step goes over gradient and residual, and on the arrays that it makes.

Counted by page faults (``page_trap.c``), so the code cannot be wrong about itself: whatever touches
the arrays traps. Whoever adds a pass to the hot path fails here; whoever saves one lowers the
budget.
"""

import json
import platform
import sys
from pathlib import Path

import cases
import pytest
from passes.page_trap import compile_trap
from passes.worker import CASES, DIRECTED, MUTANTS
from programs import run_python

# Torch's operations are a pass each: that engine is for devices, where no page faults count them.
TWO_THREADS = {"id": "numba", "threads": 2}
ENGINES = [case.id for case in cases.ENGINES if case.id != "torch" and not case.options]
ENGINES += [TWO_THREADS] if "numba" in ENGINES else []
FULL = pytest.mark.full
WITH_TIERS = [pytest.param(each, marks=() if each == "numba" else FULL) for each in ENGINES]

SLACK = 0.3
"""Passes: candidates that go back to the residual, page by page, are no pass."""
ONE_PASS = {
    "gradient read": 1.0,
    "gradient written": 0.0,
    "residual read": 1.0,
    "residual written": 1.0,
    "fresh memory": 0.0,
}
"""12 bytes an entry: what ``residual.add_(gradient)`` costs."""
BUDGETS = {"numba": ONE_PASS, "numpy": {**ONE_PASS, "fresh memory": 3.5}}
"""By engine.  Fresh memory is in gradients, whatever takes it."""

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or sys.platform != "linux",
    reason="page_trap.c knows x86-64 Linux only",
)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return compile_trap(tmp_path_factory.mktemp("page_trap"))


@pytest.fixture(scope="module", params=WITH_TIERS, ids=str)
def measured(request, library):
    worker = Path(__file__).with_name("worker.py")
    # every large array is fresh memory, which the kernel counts
    fresh = {"MALLOC_MMAP_THRESHOLD_": "65536"}
    done = run_python(worker, library, json.dumps(request.param), **fresh)
    assert done.returncode == 0, done.stderr
    id = request.param["id"] if isinstance(request.param, dict) else request.param
    return id, json.loads(done.stdout)


def best(steps):
    return {what: min(step[what] for step in steps) for what in ONE_PASS}


def over_budget(counts, budget):
    return [what for what, passes in counts.items() if passes > budget[what] + SLACK]


@pytest.mark.parametrize("case", CASES)
def test_a_step_keeps_to_the_budget(measured, case):
    engine, steps = measured
    assert best(steps[case]) == pytest.approx(BUDGETS[engine], abs=SLACK)


@pytest.mark.parametrize("memory", DIRECTED)
def test_an_optimizers_memory_moves_on_in_the_same_pass(measured, memory):
    engine, steps = measured
    budget = dict(ONE_PASS)
    for vector in DIRECTED[memory]:
        budget |= {f"{vector} read": 1.0, f"{vector} written": 1.0}
    counts = {what: min(step[what] for step in steps[memory]) for what in budget}
    if engine == "numpy":  # which makes a pass for every operation
        assert all(counts[what] > budget[what] - SLACK for what in budget), counts
    else:
        assert counts == pytest.approx(budget, abs=SLACK)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_one_pass_more_is_found(measured, mutant):
    engine, steps = measured
    assert MUTANTS[mutant][0] in over_budget(best(steps[mutant]), BUDGETS[engine])


@pytest.mark.parametrize("case", CASES)
def test_one_pass_is_one_where_it_is_said_to_be(measured, case):
    engine, steps = measured
    said = [step for step in steps[case] if step["said to be one pass"]]
    assert said, "no step was said to be one pass: the aim does not settle"
    for step in said:
        assert over_budget({what: step[what] for what in ONE_PASS}, BUDGETS[engine]) == []
