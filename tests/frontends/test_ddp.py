"""DistributedDataParallel with the hook, on real ranks under torchrun, without Horovod.

Two ranks run every case and method, three those of which the number of ranks may matter.
"""

import pytest
from frontends._common import check_every_case, launched, measured

of_each_world = pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.full)])


def outcome_of(ranks):
    return launched("frontends/ddp_laws.py", ranks, "torchrun")


@of_each_world
def test_every_law_and_method_holds_on_every_rank_and_no_horovod_is_loaded(ranks):
    check_every_case(outcome_of(ranks))
    assert measured(outcome_of(ranks), "imports") == [False] * ranks


@of_each_world
def test_who_keeps_the_others_waiting_is_named(ranks):
    first, absent, *others = measured(outcome_of(ranks), "absent_rank")
    assert absent == "absent"
    for words in (first, *others):
        assert words.startswith("ExchangeTimeout") and "rank 1 " in words


@pytest.mark.full
@pytest.mark.parametrize("group", ["both", "alone"])
def test_a_device_gives_the_bits_of_the_cpu_and_every_tensor_is_told_to_be_staged(group):
    check_every_case(launched("frontends/ddp_devices.py", 2, "torchrun", group))


@pytest.mark.full
def test_the_interpreter_ends_when_the_threads_have_let_go():
    launched("frontends/ddp_end.py", 2, "torchrun").check()
