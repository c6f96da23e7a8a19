"""A method that is added as the page says gives the core's bits on real ranks."""

import re

import pytest
from adding import added, tried
from installed import horovod_parts

FILE = "tests/frontends/test_methods.py"


@pytest.mark.skipif(
    not {"torch", "mpi"} <= horovod_parts(), reason="Horovod was built without what it runs on"
)
def test_the_added_line_gives_the_method_its_real_ranks(tmp_path):
    done = tried(added(tmp_path), "torch-mean_multiple", FILE)
    assert done.returncode == 0, done.stdout[-5000:]
    assert re.search(r"\b1 passed", done.stdout)


def test_a_method_without_real_ranks_is_named(tmp_path):
    done = tried(added(tmp_path, without=5), "has_a_case", FILE)
    assert done.returncode == 1
    assert "mean_multiple" in done.stdout
