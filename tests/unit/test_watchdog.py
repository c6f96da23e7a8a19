"""The watchdog's parts without Horovod: the ledger, what is said of other ranks, and the end."""

import signal
import sys
from types import SimpleNamespace

import pytest
from conformance.stack_checks import check_stack_reading
from programs import run_python

from hvd_sparse.watch import watchdog as watchdogs
from hvd_sparse.watch.peers import Answer, Endpoint, Ledger
from hvd_sparse.watch.watchdog import EXIT_CODE, PatientPending, Watchdog, was_ended_by_join

STUCK = """
import atexit, os, sys, time
from types import SimpleNamespace
from hvd_sparse.errors import ExchangeTimeout
from hvd_sparse.watch import watchdog
LIMIT_S = 0.5
atexit.register(time.sleep, 3600)  # as Horovod's own end, which waits for the other ranks
watchdog.END_S = 1
stuck = watchdog.Watchdog("stuck", 0, LIMIT_S)
stuck.ledger.begin("a")

def wait(limit_s):
    if sys.argv[1] == "is stuck":  # in a driver, which has no time limit
        watchdog.GRACE_S = 1
        time.sleep(3600)
    time.sleep(limit_s)
    raise ExchangeTimeout("not yet")

pending = SimpleNamespace(wait=wait, is_done=None)
try:
    watchdog.PatientPending(pending, "some collective", stuck).wait(LIMIT_S)
except ExchangeTimeout as error:
    assert not stuck.ledger.pending()
    if sys.argv[1] == "ends":
        raise
    print(error, file=sys.stderr, flush=True)
    if sys.argv[1] == "trains on":
        stuck.ledger.begin("a")
        stuck.ledger.end("a")
    watchdog.GRACE_S = 1
    while sys.argv[1] == "goes on" or stuck.ledger.standstill.seconds < 3:
        time.sleep(0.1)
    os._exit(0)
"""


@pytest.fixture
def here():
    made = Watchdog("here", 0, None)
    yield made
    made.close()


def judge(watchdog, limits):
    standstill = watchdog.ledger.standstill
    standstill.seconds = limits * LIMIT_S
    watchdog._judge(LIMIT_S, standstill)


@pytest.fixture
def meet(monkeypatch):
    """Let a watchdog meet ranks that answer what they are behind by, or are silent (None)."""

    def meet_peers(watchdog, *behind, meanwhile=lambda: None):
        def ask_all(*_):
            meanwhile()
            place = "it is at train.py:3 (step)"
            answers = {rank: each for rank, each in enumerate(behind, 1) if each is not None}
            return {rank: Answer(0, each, place) for rank, each in answers.items()}

        peers = [Endpoint(rank, [], 0, str(rank)) for rank, _ in enumerate(behind, 1)]
        monkeypatch.setattr(watchdogs, "ask_all", ask_all)
        watchdog.meet(0, SimpleNamespace(tell_all=lambda mine: [mine, *peers]))

    return meet_peers


@pytest.fixture
def ends(monkeypatch):
    said = []
    monkeypatch.setattr(watchdogs, "LAST_ANSWERS_S", 0.0)
    ending = {"write": lambda _, words: said.append(words.decode()), "_exit": said.append}
    monkeypatch.setattr(watchdogs, "os", SimpleNamespace(**ending))
    return said


def test_a_ledger_knows_what_is_pending_and_how_often():
    ledger = Ledger()
    ledger.begin("a")
    ledger.begin("b")
    assert list(ledger.pending()) == ["a", "b"]
    ledger.end("a")
    ledger.begin("a")
    assert ledger.pending() == {"b": 1, "a": 2}
    assert ledger.submissions == 3
    ledger.clear()
    assert ledger.pending() == {}
    assert ledger.submissions == 3


def test_a_standstill_ends_with_each_submission_and_each_result():
    ledger, seen = Ledger(), []
    # Of the last one, the result has arrived, or the step has failed.
    for change in (ledger.begin, ledger.begin, ledger.end, ledger.end):
        change("a")
        seen.append(ledger.standstill)
    assert len(set(seen)) == 3 and seen[2] is seen[3]


LIMIT_S = 10.0


@pytest.mark.parametrize(
    ("peers", "ends_at", "words"),
    [
        ([["a"]], 1, "rank 1 has not submitted them"),
        ([["a"], None], 2, "rank 2 does not answer"),
        ([None], 2, "rank 1 does not answer"),
        ([[], []], 2, "or an elastic run waits for a new worker"),
        ([], 1, "the other ranks are unknown"),
    ],
    ids=["late", "late and silent", "silent", "nobody", "unknown"],
)
def test_late_ranks_end_a_wait_and_silent_ones_later(here, meet, ends, peers, ends_at, words):
    meet(here, *peers)
    here.ledger.begin("a")
    for looks, (limits, is_over) in enumerate([(0.9, False), (1.1, ends_at == 1), (2.1, True)]):
        judge(here, limits)
        assert bool(ends) == is_over, looks
    assert words in ends[0] and "ExchangeTimeout" in ends[0] and "raise timeout_s" in ends[0]


def test_a_wait_of_this_package_gets_the_verdict(here, meet, ends, caplog):
    meet(here, ["a"])
    here.ledger.begin("a")
    here.ledger.waits.append("some collective")
    judge(here, 1.1)
    assert "rank 1 has not submitted them" in here.ledger.standstill.verdict
    assert here.ledger.standstill.verdict in caplog.text
    assert not ends


def submit_the_next_steps(watchdog):
    watchdog.ledger.end("a")
    watchdog.ledger.begin("a")


def reach_a_collective(watchdog):
    collective = SimpleNamespace(wait=lambda timeout_s: "result", is_done=None)
    assert PatientPending(collective, "save", watchdog).wait(LIMIT_S) == "result"


@pytest.mark.parametrize("comes", [submit_the_next_steps, reach_a_collective])
def test_what_comes_while_the_ranks_are_asked_ends_nothing(here, meet, ends, comes):
    meet(here, ["a"], meanwhile=lambda: comes(here))
    here.ledger.begin("a")
    judge(here, 1.1)
    assert not ends


@pytest.mark.parametrize(
    ("change", "exits", "is_given_time"),
    [
        (Ledger.pending, True, True),
        (Ledger.clear, False, True),
        (lambda ledger: ledger.end("a"), False, False),
    ],
    ids=["nothing", "an error", "a result"],
)
def test_what_comes_before_the_last_answers_does_not_end_the_process(
    here, meet, ends, monkeypatch, change, exits, is_given_time
):
    """The program can print an error of its own then. If it hangs afterwards, it ends later."""
    meet(here, ["a"])
    here.ledger.begin("a")
    monkeypatch.setattr(watchdogs, "time", SimpleNamespace(sleep=lambda _: change(here.ledger)))
    judge(here, 1.1)
    assert (EXIT_CODE in ends) == exits
    assert (here.ledger.standstill.verdict is not None) == is_given_time


def test_a_long_save_does_not_age_while_collectives_arrive(here):
    here.ledger.begin("save")
    for _ in range(3):
        here.ledger.standstill.seconds = 0.9 * LIMIT_S
        reach_a_collective(here)
        assert here.ledger.standstill.seconds == 0
    assert here.ledger.pending() == {"save": 1}


def test_ranks_that_have_submitted_less_lag(here, meet):
    meet(here, [])
    assert here.lagging() == []
    here.ledger.begin("a")
    assert here.lagging() == [1]


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("ends", -signal.SIGALRM),
        ("goes on", EXIT_CODE),
        ("trains on", 0),
        ("is stuck", EXIT_CODE),
    ],
)
def test_a_program_that_was_told_of_a_timeout_cannot_hang_in_horovod_afterwards(program, code):
    found = run_python("-c", STUCK, program)
    assert found.returncode == code, found
    assert "rank 0 waits for a since" in found.stderr


def test_reading_the_stack_does_not_end_the_process():
    check_stack_reading("hvd_sparse.watch.watchdog.lines_of_main_thread")


def test_an_error_in_the_join_of_horovods_package_alone_is_explained(monkeypatch):
    ops = "horovod.torch.mpi_ops"
    found = []
    for module, function in ((ops, "join"), (ops, "synchronize"), ("horovod_own.train", "join")):
        place = {"__name__": module}
        exec(f"def {function}(): raise RuntimeError", place)
        with pytest.raises(RuntimeError) as raised:
            place[function]()
        monkeypatch.setattr(sys, "last_traceback", raised.tb, raising=False)
        found.append(was_ended_by_join())
    assert found == [True, False, False]
