"""Every method and exchange gives the bits of the numpy core (invariants 24, 25, 30 and 36)."""

import re

import pytest
from adding import added, tried
from frontends._common import check_every_case, launched, measured
from frontends._method_cases import BUILT, EXCHANGES, METHODS
from installed import horovod_parts

from hvd_sparse.methods import METHODS as NAMED
from hvd_sparse.registry import EXCHANGES as REGISTERED

FILE = "tests/frontends/test_methods.py"
OF_TWO = [(2, "gloo", "torch"), (2, "gloo", "tensorflow")]
WORLDS = [
    *OF_TWO,
    (3, "mpi", "torch"),
    (4, "gloo", "torch"),
    (3, "gloo", "tensorflow"),
    (4, "mpi", "tensorflow"),
]


def name_of(world):
    return "-".join(map(str, world))


def outcome_in(world):
    ranks, controller, framework = world
    return launched("frontends/methods.py", ranks, controller, framework)


def test_every_named_method_has_a_case_and_so_has_every_exchange():
    assert set(METHODS) == set(NAMED)
    tried = [each["exchange"] for each in EXCHANGES.values()]
    assert {each if isinstance(each, str) else each["id"] for each in tried} == set(
        REGISTERED.ids()
    )


@pytest.mark.parametrize("method", [*METHODS, *BUILT])
@pytest.mark.parametrize("world", OF_TWO, ids=name_of)
def test_a_method_gives_the_bits_of_the_core_on_every_rank(world, method):
    measured(outcome_in(world), method)


@pytest.mark.parametrize("world", WORLDS, ids=name_of)
def test_an_exchange_has_the_bits_of_threads_and_a_failed_step_leaves_no_trace(world):
    check_every_case(outcome_in(world))


@pytest.mark.full
@pytest.mark.skipif(not {"torch", "gloo"} <= horovod_parts(), reason="it has no such ranks")
def test_the_added_line_gives_the_method_its_real_ranks(tmp_path):
    done = tried(added(tmp_path), "torch-mean_multiple", FILE)
    assert done.returncode == 0, done.stdout[-5000:]
    assert re.search(r"\b1 passed", done.stdout)


@pytest.mark.full
def test_a_method_without_real_ranks_is_named(tmp_path):
    done = tried(added(tmp_path, without=5), "has_a_case", FILE)
    assert done.returncode == 1
    assert "mean_multiple" in done.stdout
