"""Law 3 in TensorFlow on real ranks, whose gradient is it, and plans; a launch a world."""

import pytest
from _common import launched, measured, measured_of
from _tensorflow_settings import LAUNCHES

WORLDS, SMALL = LAUNCHES[1:], LAUNCHES[1:3]
KERAS_3 = [(2, "gloo", "keras3"), pytest.param((3, "mpi", "keras3"), marks=pytest.mark.full)]

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


@in_all
def test_gradients_of_the_tape_are_those_of_dense_horovod(world):
    assert measured_of(outcome_in(world), "tape-")


@pytest.mark.parametrize("world", [*LAUNCHES, *KERAS_3], ids=str)
def test_weights_of_keras_are_those_of_dense_horovod(world):
    assert measured_of(outcome_in(world), "keras-")


def test_a_group_on_one_rank():
    measured(outcome_in(LAUNCHES[0]), "identity_direct_allreduce_of_a_group")


@in_worlds
@pytest.mark.parametrize(
    "name",
    [
        "groups_get_the_same_bits_in_fewer_messages",
        "names_of_groups_are_those_of_other_ranks_and_traces",
        "names_that_elastic_runs_know",
        "high_density_goes_dense",
    ],
)
def test_a_law_holds_on_every_rank(world, name):
    measured(outcome_in(world), name)


@in_small_worlds
@pytest.mark.parametrize(
    "kind",
    [
        "identity",  # every variable gets its own gradient
        "planned_makes_no_difference",
        "planned_merged_layers",
        "planned_with_a_variable_that_no_loss_uses",
        "planned_where_it_cannot_be",
    ],
)
def test_a_law_holds_in_small_worlds(world, kind):
    assert measured_of(outcome_in(world), kind)
