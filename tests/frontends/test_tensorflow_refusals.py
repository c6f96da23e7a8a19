"""Input that ``hvd_sparse.tensorflow`` refuses, with the value that was wrong and the way out."""

import pytest
from _common import launched, measured_of


@pytest.mark.parametrize("which", ["2", "3", "graphs"], ids=["Keras 2", "Keras 3", "graphs"])
def test_bad_input_is_refused_by_name_and_with_the_remedy_and_other_input_is_not(which):
    outcome = launched("frontends/tensorflow_refusals.py", 1, "mpi", which)
    outcome.check()
    for name, ((said, words),) in measured_of(outcome, "").items():
        assert all(word in said for word in words.split("; ")), (name, said)
