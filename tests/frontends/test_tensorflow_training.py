"""Laws 1 and 2 through TensorFlow, and gradients that say whose they are, on real ranks."""

from __future__ import annotations

import pytest
from _outcomes import measured
from _tensorflow_launches import Launches, World, in_worlds, launch_cases

from hvd_sparse.wire.message import overhead_bytes

GROUPED_STEPS = 8
WORLDS = [(2, "gloo"), (3, "mpi"), (4, "mpi")]
IDENTITY = [
    "two_tapes_and_two_compressors_with_equal_names",
    "one_compressor_for_two_models_of_equal_shapes",
    "retracing_with_other_batch_shapes",
    "gradients_missing_in_some_steps",
    "one_gradient_object_for_two_variables",
    "a_trace_inside_a_trace",
    "indexed_slices_pass_by",
    "direct_allreduce",
    "direct_allreduce_of_a_group",
    "small_tensors_stay_dense",
    "optimizer_of_tensorflow_1",
    "one_compressor_for_two_keras_models",
    "two_keras_optimizers_in_one_graph",
    "keras_optimizer_with_a_local_layer",
    "mixed_float16_policy",
]
CONSERVATION = ["nothing_is_lost_in_a_function", "nothing_is_lost_eagerly"]
REPLICAS = ["replicas_of_a_tape_stay_identical", "replicas_of_keras_stay_identical"]

GROUPS = ["groups_of_a_tape_make_no_difference", "groups_of_keras_make_no_difference"]
NAMES = "names_of_groups_are_those_of_other_ranks_and_traces"

DENSE = "high_density_goes_dense"
LAWS = [*CONSERVATION, *REPLICAS, *GROUPS, NAMES, DENSE]
ALL_CASES = {world: [*IDENTITY, *LAWS] if world in WORLDS[:2] else LAWS for world in WORLDS}


@pytest.fixture(scope="module")
def launches() -> Launches:
    return Launches(ALL_CASES)


@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_the_launch_ends_well_and_all_its_cases_are_checked(
    launches: Launches, world: World
) -> None:
    launches.check(world)


@pytest.mark.parametrize(("world", "case"), in_worlds(WORLDS[:2], IDENTITY))
def test_every_variable_gets_its_own_gradient(launches: Launches, world: World, case: str) -> None:
    for result in measured(launches[world], case):
        assert result["wrong"] == []
        for sent in result["sent"]:
            assert sent["dense_steps"] == 0
            assert sent["entries_sent"] == sent["entries_total"]
        assert (
            sum(sent["sparse_steps"] for sent in result["sent"])
            == len(result["sent"]) * result["tensor_steps"]
        )


def test_a_group_on_one_rank() -> None:
    """Where Horovod calls a compressor there: directly, and in elastic runs."""
    case = "direct_allreduce_of_a_group"
    (result,) = measured(launch_cases((1, "gloo"), [case]), case)
    assert result["wrong"] == []
    assert result["sent"][0]["sparse_steps"] == result["tensor_steps"]


@pytest.mark.parametrize("world", WORLDS[:2], ids=str)
@pytest.mark.parametrize(
    ("case", "key", "count"),
    [
        ("one_compressor_for_two_models_of_equal_shapes", "tensors", 8),  # states of their own
        ("retracing_with_other_batch_shapes", "traces", 3),
        ("indexed_slices_pass_by", "tensors", 1),  # slices are no tensors of the compressor
    ],
)
def test_models_and_shapes_are_counted(
    launches: Launches, world: World, case: str, key: str, count: int
) -> None:
    assert {result[key] for result in measured(launches[world], case)} == {count}


@pytest.mark.parametrize("world", WORLDS[:2], ids=str)
def test_what_stays_dense_is_counted(launches: Launches, world: World) -> None:
    """Seven entries in two steps, as float32 where they have 16 bits."""
    for result in measured(launches[world], "small_tensors_stay_dense"):
        assert [sent["dense_bytes"] for sent in result["sent"]] == [
            2 * 7 * size for size in (4, 8, 4, 4)
        ]


@pytest.mark.parametrize(("world", "case"), in_worlds(WORLDS, CONSERVATION))
def test_nothing_is_lost_bit_for_bit(launches: Launches, world: World, case: str) -> None:
    for result in measured(launches[world], case):
        assert result["lost"] == 0
        assert result["kept"] > 0
        assert result["steps"] == 20
        assert result["dense_steps"] == 0
        assert 0.04 <= result["density"] <= 0.065


@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_a_timeline_tells_every_tensor_of_every_step(launches: Launches, world: World) -> None:
    for result in measured(launches[world], "nothing_is_lost_in_a_function"):
        assert result["spans"] == dict.fromkeys(("select", "encode", "exchange", "decode"), 20 * 3)


@pytest.mark.parametrize(("world", "case"), in_worlds(WORLDS, REPLICAS))
def test_replicas_stay_identical_bit_for_bit(launches: Launches, world: World, case: str) -> None:
    results = measured(launches[world], case)
    assert len({result["digest"] for result in results}) == 1
    assert len({result["residual"] for result in results}) == len(results)
    for result in results:
        assert result["steps"] == 200
        assert result["dense_steps"] == 0
        assert 0.008 <= result["density_achieved"] <= 0.013
        assert result["after"] < 0.1 * result["before"]


@pytest.mark.parametrize(("world", "case"), in_worlds(WORLDS, GROUPS))
def test_tensors_in_groups_of_horovods_get_the_same_bits_in_fewer_messages(
    launches: Launches, world: World, case: str
) -> None:
    results = measured(launches[world], case)
    spared = {"one": 1, "two": 0, "lists": 1} if world[0] == 2 else {"one": 3, "two": 2, "lists": 2}
    for result in results:
        alone = result["alone"]
        for setting in result.values():
            assert (setting["digest"], setting["residual"]) == (alone["digest"], alone["residual"])
            assert setting["digest"] == results[0]["alone"]["digest"]
            assert setting["steps"] == GROUPED_STEPS
        for label, messages in spared.items():
            saved_bytes = alone["payload_bytes"] - result[label]["payload_bytes"]
            assert saved_bytes == messages * GROUPED_STEPS * overhead_bytes(0)


@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_names_of_groups_are_those_of_other_ranks_and_traces(
    launches: Launches, world: World
) -> None:
    """Four gradients, in two groups: a reduction of carriers and an allgather each."""
    for traces in measured(launches[world], NAMES):
        assert traces == [traces[0]] * 3 == measured(launches[world], NAMES)[0]
        assert len(traces[0]) == 4, traces[0]


@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_a_dense_step_is_dense_horovod(launches: Launches, world: World) -> None:
    for result in measured(launches[world], DENSE):
        assert result["steps"] == 3
        assert (result["dense_steps"], result["sparse_steps"], result["entries_sent"]) == (9, 0, 0)
        assert result["kept"] == 0
        assert result["difference"] <= 1e-6
