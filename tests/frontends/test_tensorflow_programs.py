"""Programs as Horovod's examples have them, and callbacks of Keras."""

import pytest
from _common import launched, measured, measured_of


@pytest.fixture
def outcome():
    return launched("frontends/user_programs.py", 2, "mpi", "tensorflow")


def test_a_model_that_its_first_batch_builds_trains_with_the_tape(outcome):
    for case, (first, second) in measured_of(outcome, "program").items():
        assert first["weights"] == second["weights"]
        assert first["steps"] == 3, case
        assert first["sparse_steps"] == 3 * (2 if "module" in case else 4), case
        assert first["entries_sent"] > 0


def test_horovods_callbacks_of_keras_2_work_once_they_have_its_backend(outcome):
    first, second = measured(outcome, "callbacks_with_a_backend")
    for kind in ("warm_up", "metrics"):
        assert first[kind]["weights"] == second[kind]["weights"] and first[kind]["sparse_steps"] > 0
    assert first["metrics"]["loss"] == second["metrics"]["loss"]
    assert first["warm_up"]["lr"] == second["warm_up"]["lr"] == pytest.approx([0.075, 0.1])


def test_what_numpy_does_and_our_collectives_are_pinned_to_the_host(outcome):
    """In a graph that is traced for a GPU, so that TensorFlow copies each gradient in and out."""
    for result in measured(outcome, "placement"):
        found = result["devices"]
        assert found["PyFunc"] == ["CPU:0"]
        assert found["HorovodAllgather"] == ["CPU:0"]
        assert "GPU:0" in found["other"], "the program itself is not on the GPU"


def test_a_gradient_is_copied_once_to_the_host_and_its_result_once_back(outcome):
    for result in measured(outcome, "placement"):
        crossing = [tuple(pair) for pair in result["copies"]]
        assert crossing.count(("Reshape", "hvd_sparse_send")) == 1  # the gradient, flat
        assert crossing.count(("hvd_sparse_receive", "Reshape")) == 1
        # A name, what stands for no parameter, and the carrier, there and back.
        small = {
            ("SerializeTensor", "hvd_sparse_send"),
            ("Const", "hvd_sparse_send"),
            ("hvd_sparse_send", "HorovodAllreduce"),
            ("HorovodAllreduce", "hvd_sparse_receive"),
            ("Fill", "hvd_sparse_receive"),
            ("Const", "hvd_sparse_receive"),
        }
        assert len(crossing) == 7
        assert set(crossing) - small == {
            ("Reshape", "hvd_sparse_send"),
            ("hvd_sparse_receive", "Reshape"),
        }


def test_a_fit_is_watched_by_writers_and_a_callback(outcome):
    first, second = measured(outcome, "watched")
    assert first["weights"] == second["weights"] and second["records"] == []
    of_all = [each["summary"].partition("all ranks")[2] for each in (first, second)]
    assert of_all[0] and of_all[0] == of_all[1]
    events = [(each["event"], each["step"]) for each in first["records"]]
    # 2 epochs of 2 batches: a record at steps 1 and 3, metrics of the third batch and both epochs.
    assert sorted(events) == [
        ("metrics", 2),
        ("metrics", 3),
        ("metrics", 4),
        ("run", 0),
        ("step", 1),
        ("step", 3),
    ]
    for each in first["records"]:
        if each["event"] == "metrics":
            assert each["loss"] > 0
        if each["event"] == "step":
            (told,) = each["tensors"].values()  # of 4 tensors only the large one is compressed
            assert told["density_achieved"] == 0.5 and told["exchange_s"] > 0
