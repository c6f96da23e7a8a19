"""Law 3 in TensorFlow on real ranks, whose gradient is it, and plans; a launch a world."""

from itertools import pairwise

import pytest
from _common import launched, measured, measured_of
from _tensorflow_settings import (
    KERAS_SETTINGS,
    LAUNCHES,
    TAPE_SETTINGS,
    settings_of,
)

from hvd_sparse.plan.measurements import STEPS, WARMUP
from hvd_sparse.wire.message import overhead_bytes

WORLDS, SMALL = LAUNCHES[1:], LAUNCHES[1:3]
KERAS_3 = [(2, "gloo", "keras3"), pytest.param((3, "mpi", "keras3"), marks=pytest.mark.full)]
ADOPTED_AT = 1 + WARMUP + STEPS
WEIGHT_TOLERANCE = 1e-6
"""Of weights around 1 after eight steps at rate 0.05: a few roundings of float32 a step."""

in_all = pytest.mark.parametrize("world", LAUNCHES, ids=str)
in_worlds = pytest.mark.parametrize("world", WORLDS, ids=str)
in_small_worlds = pytest.mark.parametrize("world", SMALL, ids=str)


def outcome_in(world):
    ranks, controller, *version = world
    if version:
        return launched("frontends/keras_training.py", ranks, controller, *version, str(ranks))
    worker = "frontends/tensorflow_training.py"
    return launched(worker, ranks, controller, "tensorflow", str(ranks), controller)


@in_all
def test_the_launch_ends_well(world):
    outcome_in(world).check()


def results_of(world, kind, settings):
    for name, setting in settings_of(settings, *world[:2]).items():
        results = measured(outcome_in(world), f"{kind}-{name}")
        assert any(result["is_reduced"] for result in results) == (world[0] > 1)
        for result in results:
            expected = result if result["is_reduced"] else {"numel": 0, "tensor_steps": 0}
            assert result["dense_steps"] == 0
            assert result["entries_sent"] == result["entries_total"] == expected["numel"]
            assert result["sparse_steps"] == expected["tensor_steps"]
            yield setting, result


@in_all
def test_gradients_of_the_tape_are_those_of_dense_horovod(world):
    """Two sums of n numbers, in any order and twice scaled, differ by n + 1 roundings of their
    magnitudes at most."""
    for setting, result in results_of(world, "tape", TAPE_SETTINGS):
        assert result["dtypes_kept"]
        if not result["is_reduced"]:  # Horovod divides those of local layers everywhere
            assert result["error_ulps"] <= int(setting.network == "local_layer"), str(setting)
            continue
        assert result["error_ulps"] <= world[0] + 1, str(setting)
        assert result["effect_ulps"] > 10 * (world[0] + 1), "the comparison proves nothing"


@pytest.mark.parametrize("world", [*LAUNCHES, *KERAS_3], ids=str)
def test_weights_of_keras_are_those_of_dense_horovod(world):
    for setting, result in results_of(world, "keras", KERAS_SETTINGS):
        if not result["is_reduced"]:
            assert result["difference"] == 0, str(setting)
            continue
        assert result["difference"] <= WEIGHT_TOLERANCE, str(setting)
        assert result["effect"] > 1000 * WEIGHT_TOLERANCE, "the comparison proves nothing"


@in_small_worlds
def test_every_variable_gets_its_own_gradient(world):
    for case, results in measured_of(outcome_in(world), "identity").items():
        for result in results:
            check_identity(result, case)


def check_identity(result, case):
    assert result["wrong"] == [], case
    for sent in result["sent"]:
        assert sent["dense_steps"] == 0
        assert sent["entries_sent"] == sent["entries_total"]
    steps = sum(sent["sparse_steps"] for sent in result["sent"])
    assert steps == len(result["sent"]) * result["tensor_steps"]


def test_a_group_on_one_rank():
    case = "identity_direct_allreduce_of_a_group"
    (result,) = measured(outcome_in(LAUNCHES[0]), case)
    check_identity(result, case)


@in_small_worlds
@pytest.mark.parametrize(
    ("case", "key", "count"),
    [
        ("one_compressor_for_two_models_of_equal_shapes", "tensors", 8),  # states of their own
        ("retracing_with_other_batch_shapes", "traces", 3),
        ("indexed_slices_pass_by", "tensors", 1),  # slices are no tensors of the compressor
    ],
)
def test_models_and_shapes_are_counted(world, case, key, count):
    assert {result[key] for result in measured(outcome_in(world), f"identity_{case}")} == {count}


@in_small_worlds
def test_what_stays_dense_is_counted(world):
    """Seven entries in two steps, as float32 where they have 16 bits."""
    for result in measured(outcome_in(world), "identity_small_tensors_stay_dense"):
        sizes = [2 * 7 * size for size in (4, 8, 4, 4)]
        assert [sent["dense_bytes"] for sent in result["sent"]] == sizes


@in_worlds
def test_a_timeline_tells_every_tensor_of_every_step(world):
    for result in measured(outcome_in(world), "timeline"):
        assert result == dict.fromkeys(("select", "encode", "exchange", "decode"), 20 * 3)


@in_worlds
def test_tensors_in_groups_of_horovods_get_the_same_bits_in_fewer_messages(world):
    results = measured(outcome_in(world), "groups_make_no_difference")
    for alone, *grouped in results:
        for each, spared in zip(grouped, (2, 1, 1), strict=True):  # in 1, 2 and 2 messages
            assert each["applied"] == results[0][0]["applied"]
            assert each["kept"] == alone["kept"]
            assert alone["bytes"] - each["bytes"] == spared * 6 * overhead_bytes(0)


@in_worlds
def test_names_of_groups_are_those_of_other_ranks_and_traces(world):
    """Four gradients, in two groups: a reduction of carriers and an allgather each."""
    found = measured(outcome_in(world), "names_of_groups_are_those_of_other_ranks_and_traces")
    for traces in found:
        assert traces == [traces[0]] * 3 == found[0]
        assert len(traces[0]) == 4, traces[0]


@in_worlds
def test_elastic_runs_know_the_names_of_all_collectives(world):
    known = ("HorovodAllreduce", "HorovodAllgather", "HorovodBroadcast")
    for names in measured(outcome_in(world), "names_that_elastic_runs_know"):
        assert len(names) > 6
        assert [each for each in names if not any(word in each for word in known)] == []


@in_worlds
def test_a_dense_step_loses_nothing_and_keeps_nothing(world):
    for result in measured(outcome_in(world), "high_density_goes_dense"):
        assert result == {"lost": 0, "kept": 0, "steps": [9, 0]}


@in_small_worlds
def test_a_plan_is_adopted_at_one_step_and_changes_no_bit(world):
    results = measured(outcome_in(world), "planned_makes_no_difference")
    for result in results:
        assert result["planned"]["digests"] == results[0]["without"]["digests"]
        assert len(set(result["planned"]["digests"])) == ADOPTED_AT + 4
        for kind in ("planned", "eagerly"):
            ours = result[kind]
            assert ours["digests"] == result["without"]["digests"] and ours["alike"]
            assert ours["others"] == [ADOPTED_AT] and len(ours["adopted"]) == 1
            planned = sorted(name for members in ours["groups"] for name in members)
            assert planned == ["bias", "deep", "one", "small", "tall", "wide"]
            predicted_s = ours["plans"][-1]["predicted_s"]
            assert predicted_s["planned"] <= min(predicted_s.values())
        assert result["without"]["groups"] is None


@in_small_worlds
def test_merged_layers_are_planned_and_planned_anew_and_nothing_is_lost(world):
    first, *others = measured(outcome_in(world), "planned_merged_layers")
    assert all(other == first for other in others)
    assert set(first["lost"]) == {0}
    groups = first["groups"]
    changes = [number for number, (old, new) in enumerate(pairwise(groups), start=1) if old != new]
    assert first["others"] == changes
    adopted, departed, again = changes[:3]
    assert adopted == ADOPTED_AT and groups[adopted] is not None
    assert groups[departed] is None and groups[again] is not None
    assert again - departed == ADOPTED_AT


@in_small_worlds
def test_plans_that_cannot_be_are_refused_with_the_remedy(world):
    for told in measured(outcome_in(world), "planned_where_it_cannot_be"):
        for said in told:
            assert said.startswith("InvalidOption: ") and "groups='planned'" in said
