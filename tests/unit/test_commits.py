"""Elastic runs: whenever workers die, all others resume from one point with all residuals."""

import itertools

import numpy as np
import pytest
import worlds

from hvd_sparse.collectives.contract import Gatherer
from hvd_sparse.errors import RankMismatch
from hvd_sparse.state.redistribution import Commits

EXCHANGES = 4
"""Of a rejoining with two tensors: the roll call, a sum of each, and that all have joined."""
NUMEL = {"a": 20, "b": 5}
SUBSETS = [set(each) for size in range(4) for each in itertools.combinations(range(3), size)]


class Failure(Exception):
    """As Horovod's, when a worker died."""


def failing_at(collective, exchange, fails_at_it):
    """A collective that fails at one exchange, or, where that still ends well, at the next."""
    left = exchange

    def submit(kind, arguments, call):
        nonlocal left
        left -= 1
        if left < 0:
            raise Failure
        pending = call()
        if left == 0 and fails_at_it:
            raise Failure
        return pending

    return worlds.Around(collective, submit)


class Worker:
    def __init__(self, number):
        self.commits = Commits()
        self.model, self.draw = 0, np.random.default_rng(number)
        self.state = {"model": NUMEL, "reduction": "average", "rank": 0, "world_size": 0}
        self.state["tensors"] = {}
        self.save()

    def save(self):
        self.committed = self.model
        self.commits.commit(self.state)

    def train(self, keys=tuple(NUMEL)):
        self.model += 1
        fixed = {"threshold": 0.5, "memo": None, "exchange_memo": None, "is_sparse": True}
        fresh = {}
        for key in keys:
            drawn = self.draw.normal(size=NUMEL[key]).astype("f4")
            fresh[key] = {**fixed, "steps": self.model, "arrays": {"residual": drawn}}
        self.state = {**self.state, "tensors": {**self.state["tensors"], **fresh}}

    def restore(self):
        self.model, self.state = self.committed, self.commits.go_back(self.state)

    def owes(self):
        residuals = [t["arrays"]["residual"] for t in self.state["tensors"].values()]
        return np.concatenate(residuals) / self.state["world_size"]


def rejoin(workers, exchange=99, failing=frozenset()):
    def act(collective):
        worker = workers[collective.rank]
        unsteady = failing_at(collective, exchange, collective.rank in failing)
        worker.state = worker.commits.rejoin(
            worker.state, Gatherer(unsteady, "rejoin", worlds.TIMEOUT_S)
        )
        worker.joined = worker.model

    found = worlds.LocalWorld(len(workers), worlds.TIMEOUT_S).run_all(act)
    if all(each is None for each in found):
        for worker in workers:
            worker.model = workers[0].model  # Horovod's states take rank 0's
    return found


def old_world():
    workers = [Worker(number) for number in range(3)]
    assert rejoin(workers) == [None] * 3
    for _ in range(2):
        for worker in workers:
            worker.train()
            worker.save()
    return workers


def fail_together(workers, exchange, failing, victim, saving=frozenset()):
    found = rejoin(workers, exchange, failing)
    for rank, (worker, outcome) in enumerate(zip(workers, found)):
        has_joined = exchange == EXCHANGES and rank not in failing
        assert isinstance(outcome, Failure) or (outcome is None and has_joined)
        if outcome is None and rank in saving:
            worker.save()
    survivors = [worker for rank, worker in enumerate(workers) if rank != victim]
    for worker in survivors:
        worker.restore()
    return survivors


def check_nothing_is_lost(workers, expected):
    assert rejoin(workers) == [None] * len(workers)
    owed = sum(worker.owes() for worker in workers)
    np.testing.assert_allclose(owed, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("seed", range(60))
def test_so_it_is_when_several_fail_one_after_the_other(seed):
    draw = np.random.default_rng(seed)
    old = old_world()[:2]
    owed = {worker: worker.owes() for worker in old}
    workers = [*old, Worker(3)]
    for number in range(4, 8):
        failing = SUBSETS[draw.integers(len(SUBSETS))]
        exchange, victim = draw.integers(1, EXCHANGES + 1), draw.integers(1, 3)
        workers = fail_together(workers, exchange, failing, victim)
        workers.append(Worker(number))
    check_nothing_is_lost(workers, sum(owed[worker] for worker in old if worker in workers))


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize(
    ("exchange", "saving"),
    [*((early, set()) for early in range(1, EXCHANGES)), *((EXCHANGES, s) for s in SUBSETS)],
)
@pytest.mark.parametrize("victim", range(3))
def test_a_rejoining_stands_if_the_first_rank_has_committed_it(exchange, saving, victim, steps):
    for failing in SUBSETS:
        workers = [*old_world()[:2], Worker(3)]
        owed = [worker.owes() for worker in workers[:2]]
        for worker in workers[:2] * steps:
            worker.train()
        brought = [worker.owes() for worker in workers[:2]]
        survivors = fail_together(workers, exchange, failing, victim, saving)
        stands = min({0, 1, 2} - {victim}) in saving - failing
        alone = sum(o for rank, o in enumerate(owed) if rank != victim)
        expected = sum(brought) * 2 / 3 if stands else alone
        check_nothing_is_lost([*survivors, Worker(4)], expected)


@pytest.mark.parametrize("saving", SUBSETS)
@pytest.mark.parametrize("victim", range(3))
def test_a_step_is_taken_where_the_first_rank_has_committed_it(saving, victim):
    workers = old_world()
    before = [worker.owes() for worker in workers]
    for worker in workers:
        worker.train()
    after = [worker.owes() for worker in workers]
    for rank in saving:
        workers[rank].save()
    survivors = [worker for rank, worker in enumerate(workers) if rank != victim]
    for worker in survivors:
        worker.restore()
    stands = min({0, 1, 2} - {victim}) in saving
    expected = sum(o for rank, o in enumerate(after if stands else before) if rank != victim)
    for exchange, *ranks in ((EXCHANGES, {1}, 2, {}), (2, {1}, 2, {}), (EXCHANGES, {0}, 2, {1})):
        survivors = fail_together([*survivors, Worker(3)], exchange, *ranks)
    check_nothing_is_lost([*survivors, Worker(4)], expected)
    assert {worker.state["tensors"]["a"]["steps"] for worker in survivors} == {3 if stands else 2}


def test_half_a_step_that_the_first_rank_has_committed_is_an_error_on_all():
    """The exchange of its last tensor failed on one rank, with the worker that died."""
    workers = old_world()
    workers[0].train()
    workers[0].save()
    workers[1].train(["a"])
    for worker in workers[:2]:
        worker.restore()
    for error in rejoin([*workers[:2], Worker(3)]):
        assert isinstance(error, RankMismatch)
        assert "ranks [1] have no state of the step from which rank 0 resumes" in str(error)
        assert "tensor 'a' has made [2, 3] steps" in str(error)
        assert "anew from a checkpoint" in str(error)


def test_a_newcomers_old_checkpoint_does_not_count():
    workers = old_world()[:2]
    expected = sum(worker.owes() for worker in workers)
    newcomer = Worker(3)
    newcomer.state = {**workers[0].state}
    newcomer.save()
    survivors = fail_together([*workers, newcomer], 2, {2}, 1)
    check_nothing_is_lost([*survivors, Worker(4)], expected - workers[1].owes())


def test_a_newcomer_takes_the_learning_rates_with_which_the_others_compare():
    """Its own first rate may depend on the number of ranks."""
    workers = [*old_world()[:2], Worker(3)]
    for worker, rate in zip(workers, (0.1, 0.1, 0.15)):
        worker.state = {**worker.state, "references": [rate]}
        worker.save()
    assert rejoin(workers) == [None] * 3
    assert [worker.state["references"] for worker in workers] == [[0.1]] * 3


def test_two_states_are_kept_while_training_goes_on():
    for worker in old_world():
        assert len(worker.commits._commits) == 2
        assert worker.commits._base is worker.commits._loose is None


def test_where_ranks_only_changed_places_residuals_stay_with_their_workers():
    workers = old_world()
    before = [worker.owes().tobytes() for worker in workers]
    assert rejoin([workers[2], workers[0], workers[1]]) == [None] * 3
    assert [worker.owes().tobytes() for worker in workers] == before
    assert [worker.state["rank"] for worker in workers] == [1, 2, 0]


def test_survivors_at_different_steps_are_refused_on_all_ranks():
    states = [worker.state for worker in old_world()]
    states[1]["tensors"]["a"]["steps"] += 1
    words = r"'a' has made \[2, 3\] steps .* give the compressor to the elastic state"
    with pytest.raises(RankMismatch, match=words):
        worlds.run(
            3, lambda c: Commits().rejoin(states[c.rank], Gatherer(c, "share", worlds.TIMEOUT_S))
        )
