"""DistributedDataParallel with the hook, on real ranks under torchrun, without Horovod.

Two ranks run every case and method, three those of which the number of ranks may matter.
"""

import json

import pytest
from frontends._common import launched, measured, measured_of
from frontends._method_cases import BUILT, METHODS
from harness import launch_example

of_each_world = pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.full)])


def outcome_of(ranks):
    return launched("frontends/ddp_laws.py", ranks, "torchrun")


@of_each_world
def test_the_launch_ends_well_and_loads_no_horovod(ranks):
    outcome_of(ranks).check()
    assert measured(outcome_of(ranks), "imports") == [False] * ranks


@of_each_world
@pytest.mark.parametrize(
    "kind",
    [
        "density_one",  # trains as without a hook
        "unusual",  # mixed dtypes, other layouts, and gradients of zeros: trained as without a hook
        "conservation",
        "all_ranks_send_what_hides_behind_later_buckets",
        "a_checkpoint_goes_on_as_if_nothing_had_been",
        "the_norm_of_all_gradients_is_clipped_alike_on_all_ranks",
        "results_are_not_taken_for_gradients",
        "nan",
        "uneven_inputs",
        "the_ranks_are_those_of_ddps_process_group",
        "other_options_on_one_rank_are_refused_by_name",
    ],
)
def test_a_law_holds_on_every_rank(ranks, kind):
    assert measured_of(outcome_of(ranks), kind)


@pytest.mark.parametrize("method", [*METHODS, *BUILT])
def test_a_method_gives_the_bits_of_the_core_through_ddp(method):
    measured(outcome_of(2), method)


@of_each_world
def test_who_keeps_the_others_waiting_is_named(ranks):
    first, absent, *others = measured(outcome_of(ranks), "absent_rank")
    assert absent == "absent"
    for words in (first, *others):
        assert words.startswith("ExchangeTimeout") and "rank 1 " in words


@pytest.mark.full
def test_the_example_trains(tmp_path):
    log = tmp_path / "log.json"
    records = tmp_path / "records.jsonl"
    options = ("--epochs", "6", "--density", "0.02", "--log-json", str(log))
    options += ("--momentum", "0.5", "--telemetry", str(records))
    outcome = launch_example("pytorch_ddp_digits.py", 2, "torchrun", *options)
    assert outcome.code == 0, outcome.end
    summary = json.loads(log.read_text().splitlines()[-1])
    assert summary["test_accuracy"] > 0.7
    assert 0.015 < summary["density_achieved"] < 0.03
    assert "test_accuracy" in records.read_text()


def on_devices(group):
    return launched("frontends/ddp_devices.py", 2, "torchrun", group)


@pytest.mark.full
@pytest.mark.parametrize("group", ["both", "alone"])
@pytest.mark.parametrize(
    "case", ["topk", "ldte_bs", "small_buckets", "bucket_view", "oktopk", "nan"]
)
def test_a_device_gives_the_bits_of_the_cpu(case, group):
    for result in measured(on_devices(group), case):
        assert result["found"]["applied"] == result["expected"]["applied"]
        assert result["found"]["finite"] == result["expected"]["finite"]
        assert all(result["found"]["finite"]) is (case != "nan")


@pytest.mark.full
@pytest.mark.parametrize("group", ["both", "alone"])
def test_every_tensor_on_a_device_is_told_to_be_staged_and_why(group):
    for result in measured(on_devices(group), "topk"):
        assert result["expected"]["ways"] == ["host"]
        assert result["found"]["ways"] == ["staged"]
        (why,) = result["found"]["because"]
        assert "in its own buckets" in why


@pytest.mark.full
def test_the_interpreter_ends_when_the_threads_have_let_go():
    launched("frontends/ddp_end.py", 2, "torchrun").check()


@pytest.mark.full
def test_hsdps_hook_comes_behind_the_sum_so_no_rank_can_keep_anything_back():
    """On a mesh of one dimension it comes before anything else sums the shard."""
    results = launched("frontends/ddp_end.py", 2, "torchrun").check()
    first, second = (each["replicated"] for each in results)
    both = [sum(pair) / 2 for pair in zip(first["own"], second["own"], strict=True)]
    assert first["own"] != second["own"]
    assert first["hooked"] == second["hooked"] == first["applied"] == both
    first, second = (each["sharded"] for each in results)
    both = [sum(pair) / 2 for pair in zip(first["own"], second["own"], strict=True)]
    assert first["hooked"] + second["hooked"] == both  # a half each, and no other rank has it
