"""Programs as Horovod's examples have them, and callbacks of Keras."""

import pytest
from _common import launched, measured_of


@pytest.mark.parametrize(
    "kind",
    [
        "program",
        "horovods_callbacks_of_keras_2_work_once_they_have_its_backend",
        "a_fit_is_watched_by_writers_and_a_callback",
        "placement",
    ],
)
def test_a_law_holds_on_every_rank(kind):
    outcome = launched("frontends/user_programs.py", 2, "mpi", "tensorflow")
    assert measured_of(outcome, kind)
