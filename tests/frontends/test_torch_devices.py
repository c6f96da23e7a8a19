"""Gradients on a device have the bits of those on the CPU, for every method; on real ranks."""

import re

import pytest
from devices.gpu_check.checks import OTHER_DIGITS, judge
from frontends._common import measured
from frontends._method_cases import BUILT, METHODS, OPTIONS_ON_DEVICES, STAYING, STEPS
from harness import ROOT, launch

RANKS = 2
CASES = (
    *METHODS,
    *BUILT,
    *STAYING,
    "two_buckets",
    *(f"option {each}" for each in OPTIONS_ON_DEVICES),
)
SET = (0, 2)


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
    *(f"codec_{number}" for number in (0, 1, 2, 3, 4, 5, 7)),
    *("option max_gathered_bytes", "option on_nonfinite"),
    *STAYING,
)
"""Cases whose gradients stay on the device; those of all others are staged."""


@pytest.fixture(scope="module")
def outcome():
    return launch("frontends/torch_devices.py", RANKS, "mpi")


@pytest.mark.parametrize("wire", ["found", "carried"])
def test_the_device_gives_the_bits_of_the_cpu(outcome, wire):
    """In every method and law that runs on both."""
    found = {name: each["measured"] for name, each in outcome.check()[0].items()}
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


@pytest.mark.parametrize(("case", "waits"), [("topk", 1), ("ldte_bs", 1), ("two_buckets", 2)])
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


def test_staged_tensors_of_a_bucket_are_waited_for_once_behind_the_backward_pass(outcome):
    for result in measured(outcome, "option engine"):
        assert result["found"]["waits"] == 1
        assert result["found"]["in_backward"] == 0


def test_the_tests_mean_what_they_say(outcome):
    for wire in ("expected", "found", "carried"):
        for result in measured(outcome, "a_dense_fall_back"):
            assert result[wire]["dense_steps"] > 0
        for result in measured(outcome, "a_grad_scaler"):
            assert len(set(result[wire]["finite"])) > 1  # the scale has risen and fallen
        for result in measured(outcome, "a_step_that_is_taken_back"):
            assert result[wire]["finite"] == [True, True, "taken back", True, True, True]
        for result in measured(outcome, "local_steps"):
            assert result[wire]["exchanges"] > 0


OTHERS = ("refusals", "warm_messages_have_one_length", "a_stream_that_does_not_wait_is_found_out")


@pytest.mark.parametrize("name", OTHERS)
def test_a_law_holds_on_every_rank(outcome, name):
    measured(outcome, name)


def test_every_collective_brings_the_same_by_both_wires(outcome):
    for result in measured(outcome, "collectives"):
        assert result == {"all": [True, 18], "alone": [True, 18]}


def test_a_loss_scale_is_asked_for_once_a_step(outcome):
    for result in measured(outcome, "a_loss_scale"):
        assert result["found"]["asked"] == STEPS


def test_a_process_set_trains_on_the_device():
    """Two ranks of three; the third is in another world."""
    results = launch("frontends/torch_devices.py", 3, "mpi", "set").check()
    for rank in SET:
        result = results[rank]["a_process_set"]["measured"]
        assert result["found"]["ways"] == result["carried"]["ways"] == ["device", "staged"]
        assert result["carried"]["wire"] == "device"
        for wire in ("found", "carried"):
            assert judge("a_process_set", {"measured": result}, wire) == ""
    assert results[1]["a_process_set"]["measured"] == {}
