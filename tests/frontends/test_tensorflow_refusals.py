"""Input that ``hvd_sparse.tensorflow`` refuses, with the value that was wrong and the way out."""

import pytest
from _common import check_every_case, launched


@pytest.mark.parametrize("which", ["2", "3", "graphs"], ids=["Keras 2", "Keras 3", "graphs"])
def test_bad_input_is_refused_by_name_and_with_the_remedy_and_other_input_is_not(which):
    check_every_case(launched("frontends/tensorflow_refusals.py", 1, "mpi", which))
