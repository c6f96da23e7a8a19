"""States: checkpoint files, loaded into worlds of other sizes, and the commits of elastic runs."""

import itertools
import json
import math
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import worlds

from hvd_sparse.collectives.contract import Gatherer
from hvd_sparse.errors import CorruptCheckpoint, ExchangeTimeout, PeerFailure, RankMismatch
from hvd_sparse.state import checkpoint_file as checkpoint
from hvd_sparse.state.checkpoint_file import gather_into_file
from hvd_sparse.state.redistribution import Commits, redistribute

ROWS, MODEL = 40, {"a": "[8, 5] float32", "b": "[3] float64"}


def state_of(rank, size=3, reduction="average", memory=("residual",)):
    draw = np.random.default_rng([rank, size])
    first = {"steps": 7, "threshold": 0.1 + rank, "memo": [1, 0.5], "is_sparse": True}
    second = {"steps": 7, "threshold": None, "memo": None, "is_sparse": False}
    for tensor in (first, second):
        tensor |= {"selected_in": "a", "exchange_memo": None}
    first["arrays"] = {name: draw.normal(size=ROWS).astype("f4") for name in memory}
    second["arrays"] = {"residual": draw.normal(size=3)}
    head = {"version": 2, "library": "1", "config": {"name": None}, "model": MODEL}
    head |= {"reduction": reduction, "rank": rank, "world_size": size}
    return {**head, "tensors": {"a": first, "b": second}}


def flat(states, key, name="residual"):
    return np.stack([state["tensors"][key]["arrays"][name].astype(np.float64) for state in states])


def write(path, *states):
    with checkpoint.atomic(path) as stream:
        stream.write(checkpoint.to_bytes(*states))


def assert_same(one, other):
    assert {**one, "tensors": 0} == {**other, "tensors": 0}
    for key, tensor in one["tensors"].items():
        arrays = other["tensors"][key]["arrays"]
        assert tensor["arrays"].keys() == arrays.keys()
        assert all(worlds.same_bits(a, arrays[name]) for name, a in tensor["arrays"].items())
        assert {**tensor, "arrays": 0} == {**other["tensors"][key], "arrays": 0}


def test_every_truncation_and_every_altered_byte_is_refused(tmp_path):
    path = tmp_path / "file"
    write(path, state_of(0, 1))
    whole = path.read_bytes()
    damaged = [whole[:size] for size in range(len(whole))]
    damaged += [
        whole[:i] + bytes([whole[i] ^ 1 << i % 8]) + whole[i + 1 :] for i in range(len(whole))
    ]
    for content in [*damaged, whole + b"\0"]:
        path.write_bytes(content)
        with pytest.raises(CorruptCheckpoint):
            checkpoint.read(path)


WRONG = {"dtype": ["object", "O"], "length": [-1, None, math.inf], "place": [10**9, -math.inf]}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in WRONG.items() for value in values]
)
def test_a_file_with_a_right_digest_and_wrong_arrays_is_refused(tmp_path, field, value):
    with checkpoint.atomic(tmp_path / "file") as stream:
        writer = checkpoint.Writer(stream)
        array = {**writer.add(np.ones(3, "f4")), field: value}
        writer.finish([{"tensors": {"a": {"arrays": {"residual": array}}}}])
    with pytest.raises(CorruptCheckpoint):
        checkpoint.read(tmp_path / "file")


def test_a_file_with_a_right_digest_that_nests_too_deeply_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(json, "dumps", lambda value: "[" * 100_000 + "]" * 100_000)
    with checkpoint.atomic(tmp_path / "file") as stream:
        checkpoint.Writer(stream).finish([])
    with pytest.raises(CorruptCheckpoint, match="has no valid states"):
        checkpoint.read(tmp_path / "file")


def test_a_symbolic_link_is_kept_and_its_target_is_written(tmp_path):
    (tmp_path / "folder").mkdir()
    path, target = tmp_path / "link", tmp_path / "folder" / "file"
    path.symlink_to("folder/file")
    for states in ([state_of(0)], [state_of(0, 2), state_of(1, 2)]):  # first, the file is missing
        write(path, *states)
        assert path.is_symlink() and len(checkpoint.read(target)) == len(states)
    assert sorted(os.listdir(tmp_path)) == ["folder", "link"]
    assert os.listdir(tmp_path / "folder") == ["file"]


KILLED_WRITER = """
import os, signal, sys
from hvd_sparse.state import checkpoint_file as checkpoint
with checkpoint.atomic(sys.argv[1]) as stream:
    stream.write(b"half of it")
    stream.flush()
    if sys.argv[2] == "waits":
        print("writes", flush=True)
        signal.pause()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def partials(folder):
    return sorted(name for name in os.listdir(folder) if name.endswith(".partial"))


def test_what_killed_writers_left_is_gone_after_the_next_one(tmp_path):
    path = tmp_path / "file"
    foreign = [".file.notours.partial", ".other.abcdefgh.partial", ".file.abcdefgh"]
    for name in foreign:
        (tmp_path / name).write_bytes(b"")
    for _ in range(3):
        code = subprocess.run([sys.executable, "-c", KILLED_WRITER, path, "dies"]).returncode
        assert code == -signal.SIGKILL
        assert len(set(partials(tmp_path)) - set(foreign)) == 1  # what the last one left is gone
    write(path, state_of(0))
    assert sorted(os.listdir(tmp_path)) == sorted([*foreign, "file"])
    assert len(checkpoint.read(path)) == 1


def test_what_a_living_writer_is_at_is_left_alone(tmp_path):
    path = tmp_path / "file"
    command = [sys.executable, "-c", KILLED_WRITER, path, "waits"]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert writer.stdout.readline() == "writes\n"
        at_work = partials(tmp_path)
        write(path, state_of(0))
        assert len(at_work) == 1 and partials(tmp_path) == at_work
    finally:
        writer.kill()
        writer.communicate()


def test_a_file_that_cannot_be_finished_leaves_the_old_one(tmp_path):
    write(tmp_path / "file", state_of(0))
    before = (tmp_path / "file").read_bytes()
    with pytest.raises(TypeError):
        write(tmp_path / "file", {**state_of(0), "config": object()})
    assert (tmp_path / "file").read_bytes() == before
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("new_size", [1, 2, 4, 7])
@pytest.mark.parametrize(
    ("reduction", "factor"), [("average", lambda n: 1 / n), ("sum", lambda n: 1)]
)
def test_what_the_optimizer_is_owed_is_kept_across_world_sizes(new_size, reduction, factor):
    """Of Adam's moments, each rank gets the mean of the ranks' estimates."""
    memory = ("residual", "momentum", "mean", "square")
    old = [state_of(rank, 3, reduction, memory) for rank in range(3)]
    for rank, engine in enumerate((None, "numpy", "numba")):  # which may differ between ranks
        old[rank]["config"] = {"timeout_s": rank, "name": f"n{rank}", "engine": engine}
    new = redistribute(old, new_size)
    assert [state["rank"] for state in new] == list(range(new_size))
    for name in ("residual", "momentum"):
        owed = flat(old, "a", name).sum(0) * factor(3)
        kept = flat(new, "a", name).sum(0) * factor(new_size)
        np.testing.assert_allclose(kept, owed, rtol=1e-6, atol=1e-7)
    for name in ("mean", "square"):
        expected = np.broadcast_to(flat(old, "a", name).mean(0), (new_size, ROWS))
        np.testing.assert_allclose(flat(new, "a", name), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("reduction", ["average", "sum"])
def test_what_is_the_same_on_every_rank_stays_as_it_is(reduction):
    old = [state_of(rank, 3, reduction, ("residual", "decay")) for rank in range(3)]
    for state in old:
        arrays_of(state)["decay"] = np.arange(ROWS, dtype="f4")
        arrays_of(state, "b")["residual"] = np.arange(3.0)
    for state in redistribute(old, 5):
        assert arrays_of(state)["decay"].tolist() == list(range(ROWS))
        assert arrays_of(state, "b")["residual"].tolist() == [0, 1, 2]
        assert state["tensors"]["a"]["steps"] == 7
        assert state["tensors"]["a"]["threshold"] is None


def arrays_of(state, key="a"):
    return state["tensors"][key]["arrays"]


def share_out_among_the_ranks_of_a_node(states):
    for state in states:
        arrays_of(state, "b")["residual"] = np.zeros(2)


@pytest.mark.parametrize(
    ("spoil", "error", "words"),
    [
        (lambda s: s.clear(), RankMismatch, "no states"),
        (lambda s: s.pop(), RankMismatch, r"ranks \[0, 1\] of a run with 3"),
        (lambda s: s[2].update(rank=1), RankMismatch, r"ranks \[0, 1, 1\]"),
        (lambda s: s[2].update(config={"rollback": False}), RankMismatch, "config"),
        (lambda s: s[2].update(model={}), RankMismatch, "model"),
        (lambda s: s[2].update(reduction="sum"), RankMismatch, "reduction"),
        (lambda s: s[1]["tensors"]["a"].pop("arrays"), CorruptCheckpoint, "lacks arrays of 'a'"),
        (lambda s: arrays_of(s[1]).clear(), RankMismatch, "'a' has different arrays"),
        (lambda s: arrays_of(s[1]).update(residual=np.zeros(3)), RankMismatch, "'a' has different"),
        (lambda s: s[1]["tensors"]["a"].update(steps=8), RankMismatch, r"'a' has made \[7, 8\]"),
        (share_out_among_the_ranks_of_a_node, RankMismatch, r"'b' has 3 entries, but .* a part"),
    ],
)
def test_states_that_do_not_fit_together_are_refused_before_any_is_merged(spoil, error, words):
    states = [state_of(rank) for rank in range(3)]
    spoil(states)
    with pytest.raises(error, match=words):
        redistribute(states, 2)


NO_PATHS = {path: repr(path) for path in ("with\0nul", "lone \ud800 surrogate", None, 7)}


@pytest.mark.parametrize(("path", "words"), [("missing/file", "missing"), *NO_PATHS.items()])
def test_a_path_that_cannot_be_written_is_an_error_on_all(path, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def on_rank(collective):
        gather_into_file(
            state_of(collective.rank), path, Gatherer(collective, "save", worlds.TIMEOUT_S)
        )

    results = worlds.LocalWorld(3, worlds.TIMEOUT_S).run_all(on_rank)
    assert [type(result) for result in results] == [PeerFailure] * 3
    assert words in str(results[2])


def test_an_error_in_gathering_is_raised_as_it_is_and_nothing_more_is_gathered(tmp_path):
    """It is an OSError by birth, and no word on the file."""
    calls = []

    def on_rank(collective):
        def lose(kind, arguments, call):
            calls.append(collective.rank)
            if calls.count(collective.rank) > 2:
                raise ExchangeTimeout("a rank has died")
            return call()

        around = worlds.Around(collective, lose)
        gatherer = Gatherer(around, "save", worlds.TIMEOUT_S)
        gather_into_file(state_of(collective.rank), tmp_path / "file", gatherer)

    results = worlds.LocalWorld(2, worlds.TIMEOUT_S).run_all(on_rank)
    assert isinstance(results[0], ExchangeTimeout)
    assert calls.count(0) == 3
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("most_bytes", [31, 300, checkpoint.GATHERED_BYTES])
def test_all_ranks_gather_into_one_file_in_slices(tmp_path, monkeypatch, most_bytes):
    """31 bytes are 10 for each of 3 ranks: two and a half entries of "a"."""
    monkeypatch.setattr(checkpoint, "GATHERED_BYTES", most_bytes)
    gathered = [[] for _ in range(3)]

    def on_rank(collective):
        def note(kind, arguments, call):
            gathered[collective.rank].append(arguments[0])
            return call()

        state = state_of(collective.rank)
        if collective.rank == 1:
            del state["tensors"]["a"]
        around = worlds.Around(collective, note)
        gather_into_file(state, tmp_path / "file", Gatherer(around, "save", worlds.TIMEOUT_S))

    worlds.run(3, on_rank)
    slices = [each[1:-1] for each in gathered]  # without the two of JSON
    share = most_bytes // 3
    assert [len(each) for each in slices] == [-(-160 // share) + -(-24 // share)] * 3
    assert all(part.nbytes <= share for each in slices for part in each)
    found = checkpoint.read(tmp_path / "file")
    assert sorted(found[1]["tensors"]) == ["b"]
    for rank in (0, 2):
        assert_same(state_of(rank), found[rank])


def test_a_new_file_has_the_usual_mode_and_another_that_of_the_file_it_replaces(tmp_path):
    path, modes = tmp_path / "file", []
    before = os.umask(0o027)
    try:
        for mode in (0o604, 0o600):
            write(path, state_of(0))
            modes.append(path.stat().st_mode & 0o777)
            path.chmod(mode)
        write(path, state_of(0))
    finally:
        os.umask(before)
    assert [*modes, path.stat().st_mode & 0o777] == [0o640, 0o604, 0o600]


# -- commits of elastic runs, whose workers resume from one point ----------------------------------

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
    """Also if a newcomer has loaded an old checkpoint, which does not count."""
    draw = np.random.default_rng(seed)
    old = old_world()[:2]
    owed = {worker: worker.owes() for worker in old}
    workers = [*old, Worker(3)]
    for number in range(4, 8):
        failing = SUBSETS[draw.integers(len(SUBSETS))]
        exchange, victim = draw.integers(1, EXCHANGES + 1), draw.integers(1, 3)
        workers = fail_together(workers, exchange, failing, victim)
        workers.append(Worker(number))
        if number % 2:
            workers[-1].state = {**workers[0].state}
            workers[-1].save()
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
