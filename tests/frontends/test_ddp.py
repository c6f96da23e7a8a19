"""DistributedDataParallel with the hook, on real ranks under torchrun, without Horovod.

Two ranks run every case and method, three those of which the number of ranks may matter.
"""

import json

import pytest
from frontends._common import ULP, launched, measured, measured_of
from frontends._method_cases import BUILT, METHODS, SHAPES, STEPS
from harness import launch_example

UNUSED = [
    "conservation_of_unused_parameters",
    "conservation_of_unused_parameters_by_oktopk",
    "conservation_without_rollback",
]
TRANSPOSED = "conservation_of_transposed_parameters"
TOLERANCE_ULPS = 16

of_each_world = pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.full)])


def outcome_of(ranks):
    return launched("frontends/ddp_laws.py", ranks, "torchrun")


@of_each_world
def test_the_launch_ends_well_and_loads_no_horovod(ranks):
    outcome_of(ranks).check()
    assert measured(outcome_of(ranks), "imports") == [False] * ranks


@of_each_world
def test_density_one_trains_as_ddp_without_a_hook(ranks):
    for name, results in measured_of(outcome_of(ranks), "density_one").items():
        dtype, goes_dense = name.removeprefix("density_one_"), name.endswith("goes_dense")
        assert len({result["digest"] for result in results}) == 1, name
        for result in results:
            assert result["difference"] <= TOLERANCE_ULPS * ULP.get(dtype, ULP["float32"]), name
            assert (result["dense_steps"] == 0) == (not goes_dense), name
            assert (result["sparse_steps"] > 0) == (not goes_dense), name


@of_each_world
def test_mixed_dtypes_other_layouts_and_gradients_of_zeros_that_were_used_change_nothing(ranks):
    found = measured_of(outcome_of(ranks), "unusual")
    assert len(found) == 4
    for name, results in found.items():
        for result in results:
            assert result["apart"] <= TOLERANCE_ULPS * ULP["float32"], name


@of_each_world
def test_results_are_not_taken_for_gradients(ranks):
    """By a memory that makes velocities of gradients: the second pass is refused on all ranks."""
    for result in measured(outcome_of(ranks), "momentum_met_by_its_own_results"):
        assert result["apart"] <= TOLERANCE_ULPS * ULP["float32"]
        for words in result["errors"]:
            assert words.startswith("InvalidOption: tensor '") and "no_sync()" in words


@pytest.mark.parametrize("method", [*METHODS, *BUILT])
def test_a_method_gives_the_bits_of_the_core_through_ddp(method):
    results = measured(outcome_of(2), method)
    for result in results:
        expected = result["expected"]
        assert (result["applied"], result["kept"]) == (expected["applied"], expected["kept"])
        assert result["applied"] == results[0]["applied"]
        assert result["sparse_steps"] == STEPS * len(SHAPES)
        assert result["entries_sent"] > 0


@of_each_world
@pytest.mark.parametrize("name", [TRANSPOSED, *UNUSED])
def test_nothing_is_lost_where_buckets_change_and_parameters_are_unused(ranks, name):
    for result in measured(outcome_of(ranks), name):
        assert result["lost"] == [0] * 12
        # DDP builds its buckets anew, unless it looks for unused parameters.
        assert result["plans"] == (1 if name in UNUSED else 2)
        assert (result["idle"] > 0) == (name in UNUSED)


@of_each_world
def test_all_ranks_send_what_hides_behind_later_buckets(ranks):
    first, *others = measured(outcome_of(ranks), "densities_that_hide")
    assert first["lost"] == [0] * 12 and first["hiding"] == {"c_max": 50, "is_measured": True}
    assert set(first["asked"]) == {name for names in first["together"] for name in names}
    assert all(0.02 <= density <= 1 for density in first["asked"].values())
    for names in first["together"]:
        assert len({first["asked"][name] for name in names}) == 1
    for result in others:
        assert (result["asked"], result["together"]) == (first["asked"], first["together"])


@of_each_world
@pytest.mark.parametrize(
    ("case", "nans", "words"),
    [("nan_propagates", 300, "nothing was raised"), ("nan_is_raised", 0, "'t2': 1 of 300 entries")],
)
def test_nan_on_one_rank_is_nan_or_an_error_on_all_and_leaves_no_trace(ranks, case, nans, words):
    for result in measured(outcome_of(ranks), case):
        with_nan, without = result["ends"]
        assert with_nan == without
        assert result["nans"] == nans and words in result["error"]


@of_each_world
def test_a_checkpoint_goes_on_as_if_nothing_had_been(ranks):
    results = measured(outcome_of(ranks), "resumed")
    assert len({digest for result in results for digest in result["digests"]}) == 1


@of_each_world
def test_the_norm_of_all_gradients_is_clipped_alike_on_all_ranks(ranks):
    first, *others = measured(outcome_of(ranks), "clipped")
    for result in (first, *others):
        assert result == first
        assert result["same_error"] < 1e-5 and result["other_error"] < 1e-5
        assert result["same_norm"] == pytest.approx(2.0, rel=1e-5)
        # The ranks' root mean square is above the norm of their average.
        assert 2.0 / ranks < result["other_norm"] < 2.0


@of_each_world
def test_join_lets_ranks_have_unequally_many_batches(ranks):
    assert [each["steps"] for each in measured(outcome_of(ranks), "uneven_inputs")] == [5] * ranks


@of_each_world
def test_the_ranks_are_those_of_ddps_process_group(ranks):
    for rank, result in enumerate(measured(outcome_of(ranks), "groups_of_ranks")):
        assert result["is_member"] == (rank < 2)
        assert result.get("differences", 0) == 0


@of_each_world
def test_other_options_on_one_rank_are_refused_by_name(ranks):
    for result in measured(outcome_of(ranks), "other_options_on_one_rank"):
        density, exchange = result["errors"]
        assert density.startswith("RankMismatch") and '"density": 0.2' in density
        assert exchange.startswith("RankMismatch")


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
