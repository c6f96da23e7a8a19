"""Gradients on a device have the bits of those on the CPU, for every method; on real ranks."""

import re

import pytest
from devices.gpu_check.checks import OTHER_DIGITS, judge
from frontends._common import check_every_case, measured
from frontends._method_cases import BUILT, METHODS, OPTIONS_ON_DEVICES, STAYING
from harness import ROOT, launch

CASES = (
    *METHODS,
    *BUILT,
    *STAYING,
    "two_buckets",
    *(f"option {each}" for each in OPTIONS_ON_DEVICES),
)


def told_waits():
    """Return the waits of a step, and those in the backward pass, as the guide tells them by
    method."""
    guide = (ROOT / "docs" / "guide" / "gpu.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| (\d+) \| (\d+) \|$", guide, re.MULTILINE)
    return {
        method: (int(step), int(backward))
        for methods, step, backward in rows
        for method in re.findall(r"\w+", methods)
    }


STAY = (
    *told_waits(),
    *("chunks_of_each_rank", "redsync_trimmed", "fixed_threshold"),
    *("warm_up", "density_by_tensor", "piecewise", "two_buckets"),
    *(f"codec_{number}" for number in range(7)),
    *("option max_gathered_bytes", "option on_nonfinite"),
    *STAYING,
)
"""Cases whose gradients stay on the device; those of all others are staged."""


@pytest.fixture(scope="module")
def outcome():
    return launch("frontends/torch_devices.py", 2, "mpi")


@pytest.mark.parametrize("wire", ["found", "carried"])
def test_the_device_gives_the_bits_of_the_cpu(outcome, wire):
    """In every method and law that runs on both."""
    check_every_case(outcome)
    found = {name: each["measured"] for name, each in outcome.results[0].items()}
    cases = [name for name, each in found.items() if isinstance(each, dict) and "expected" in each]
    assert set(CASES) < set(cases)
    for case in cases:
        for result in measured(outcome, case):
            assert judge(case, {"measured": result}, wire) == ""
        for key in OTHER_DIGITS.get(case, ()):
            assert len({result[wire][key] for result in measured(outcome, case)}) == 1, key


@pytest.mark.parametrize("case", CASES)
def test_every_way_is_told(outcome, case):
    for result in measured(outcome, case):
        assert result["expected"]["ways"] == ["host"]
        assert result["expected"]["because"] == []
        way = ["device"] if case in STAY else ["staged"]
        assert result["found"]["ways"] == result["carried"]["ways"] == way
        assert result["expected"]["wire"] == result["found"]["wire"] == "host"
        assert result["carried"]["wire"] == "device"
        assert bool(result["found"]["because"]) is (case not in STAY)


def test_all_that_declares_to_work_on_the_device_was_there(outcome):
    from hvd_sparse.configuration import PARTS

    def declares(parts, id):
        declared = parts.get(id).needs_host
        return not (parts.create(id).needs_host if isinstance(declared, property) else declared)

    (results, *_) = zip(*(measured(outcome, case) for case in STAY))
    seen = {part for result in results for part in result["found"]["parts"]}
    assert seen == {
        f"{kind} {id}"
        for kind in PARTS.keys() - {"schedule"}
        for id in PARTS[kind]
        if declares(PARTS[kind], id)
    }


@pytest.mark.parametrize(("case", "waits"), [("option engine", 1), ("two_buckets", 2)])
def test_a_warm_step_waits_once_a_bucket_and_not_in_the_backward_pass(outcome, case, waits):
    for result in measured(outcome, case):
        assert result["found"]["in_backward"] == 0
        # A bucket's answers may be here when the one before has been waited for.
        assert 1 <= result["found"]["waits"] <= waits


def test_the_guide_says_how_often_a_warm_step_of_every_method_waits(outcome):
    told, found = told_waits(), {}
    for method in told:
        results = [each["found"] for each in measured(outcome, method)]
        found[method] = tuple(
            max(each[key] for each in results) for key in ("waits", "in_backward")
        )
    assert found == told


def test_the_tests_mean_what_they_say(outcome):
    for wire in ("expected", "found", "carried"):
        for result in measured(outcome, "a_dense_fall_back"):
            assert result[wire]["dense_steps"] > 0
        for result in measured(outcome, "a_grad_scaler"):
            assert len(set(result[wire]["finite"])) > 1  # the scale has risen and fallen
        for result in measured(outcome, "a_step_that_is_taken_back"):
            assert result[wire]["finite"] == [True, True, "taken back", True, True, True]


def test_every_collective_brings_the_same_by_both_wires(outcome):
    for result in measured(outcome, "collectives"):
        assert result == {"all": [True, 18], "alone": [True, 18]}


def test_gpu_check_looks_for_the_stall_on_two_ranks_where_there_is_no_gpu():
    for result in launch("frontends/torch_stall.py", 2, "gloo").check():
        assert set(result["gathers"]) == {"idle", "default", "own"}
        assert all(seconds > 0 for seconds in result["gathers"].values())
