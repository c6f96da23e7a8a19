"""``python -m benchmarks accuracy``: other methods' rules, and simulated beside real ranks."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")
pytest.importorskip("rich")
import torch

from benchmarks.accuracy.ours import Ours
from benchmarks.accuracy.real import on_real_ranks
from benchmarks.accuracy.rules import DeMo, Dense, OneBitAdam, PowerSGD, SparseLoCo, cosines
from benchmarks.accuracy.tasks import TASKS
from benchmarks.accuracy.training import NAMED, Line, Run, Training

pytestmark = pytest.mark.full
WORKERS, ROWS, COLUMNS = 3, 64, 128


class Trained:
    def __init__(self, kind, *told, rate=0.1, adamw=False):
        torch.manual_seed(0)
        self.network = torch.nn.Linear(COLUMNS, ROWS)
        make = torch.optim.AdamW if adamw else torch.optim.SGD
        self.optimizer = make(self.network.parameters(), lr=rate)
        self.rule = kind(self.network, self.optimizer, WORKERS, *told)
        self.drawn = torch.Generator().manual_seed(3)

    def step(self, matrices=None):
        if matrices is None:
            matrices = torch.randn(WORKERS, ROWS, COLUMNS, generator=self.drawn)
        each = iter(matrices)
        self.rule.step(torch.arange(WORKERS), lambda _: ([next(each), torch.ones(ROWS)], 1.0))
        return matrices

    @property
    def weight(self):
        return self.network.weight.detach().clone()


@pytest.mark.parametrize("rank", [1, 4])
def test_powersgd_is_exact_for_matrices_of_its_rank_and_owes_the_rest(rank):
    trained = Trained(PowerSGD, rank, rate=1.0)
    factors = torch.randn(ROWS, rank, generator=trained.drawn)
    low = factors @ torch.randn(rank, COLUMNS, generator=trained.drawn)
    before = trained.weight
    trained.step(low.expand(WORKERS, ROWS, COLUMNS))
    assert torch.allclose(before - trained.weight, low, atol=1e-3)
    total = low.clone()
    for _ in range(3):
        total += trained.step().mean(0)
    owed = trained.rule._errors[0].mean(0)
    assert float(owed.norm()) > 1
    assert torch.allclose(before - trained.weight + owed, total, atol=1e-3)


def test_one_bit_adam_is_adamw_and_then_moves_by_signs_over_a_frozen_moment():
    steps = 10
    trained = Trained(OneBitAdam, steps, adamw=True)
    beside = Trained(Dense, adamw=True)
    for _ in range(2):  # a fifth
        trained.step()
        beside.step()
    assert torch.equal(trained.weight, beside.weight)
    square = trained.optimizer.state[trained.network.weight]["exp_avg_sq"].clone()
    mean = trained.optimizer.state[trained.network.weight]["exp_avg"].clone()
    before, nbytes = trained.weight, trained.rule.entry_bytes
    found = trained.step()
    state = trained.optimizer.state[trained.network.weight]
    assert torch.equal(state["exp_avg_sq"], square)
    assert len(state["exp_avg"].abs().unique()) == 1
    # what the signs rounded off is owed by the workers and by the server
    owed = trained.rule._errors[0].mean(0) + trained.rule._servers[0]
    assert torch.allclose(state["exp_avg"] + owed, 0.9 * mean + 0.1 * found.mean(0), atol=1e-5)
    moved = before * (1 - 0.1 * 0.01) - trained.weight
    wanted = 0.1 * state["exp_avg"] / ((square / (1 - 0.999**2)).sqrt() + 1e-8)
    assert torch.allclose(moved, wanted, atol=1e-6)
    assert trained.rule.entry_bytes - nbytes == ROWS * COLUMNS / 8 + 4


def test_sparse_loco_trains_locally_and_exchanges_what_moved():
    trained = Trained(SparseLoCo, 2, 64, adamw=True)
    before = trained.weight
    trained.step()
    assert torch.equal(trained.weight, before), "nothing is agreed on between exchanges"
    locals_ = [mine[0].clone() for mine in trained.rule._locals]
    assert not torch.equal(locals_[0], locals_[1])
    trained.step()
    assert not torch.equal(trained.weight, before)
    assert all(torch.equal(mine[0], trained.weight) for mine in trained.rule._locals)
    chunks = ROWS * COLUMNS // 4096
    assert trained.rule.entry_bytes == chunks * (64 * 14 / 8 + 4)
    # each worker sent 64 of 4,096 of what it moved, and owes the rest
    owed = trained.rule._errors[0]
    assert int((owed.flatten(1) == 0).sum()) < WORKERS * 64 * chunks
    sent = WORKERS * (before - trained.weight)
    assert int((sent.abs() > 1e-6).sum()) <= WORKERS * 64 * chunks


def test_demo_sends_the_largest_cosines_and_moves_by_signs():
    trained = Trained(DeMo, 2, rate=0.5)
    matrix = cosines(64)
    assert torch.allclose(matrix @ matrix.T, torch.eye(64), atol=1e-5)
    pure = torch.zeros(ROWS, COLUMNS)
    pure[:, :64] = 3 * torch.outer(matrix[2], matrix[5])
    pure[:, 64:] = -2 * torch.outer(matrix[0], matrix[1])
    before = trained.weight
    trained.step(pure.expand(WORKERS, ROWS, COLUMNS))
    assert torch.allclose(before - trained.weight, 0.5 * pure.sign(), atol=1e-5)
    assert float(trained.rule._sums[0].abs().max()) < 1e-4, "one component says all of it"
    assert trained.rule.entry_bytes == 2 * 2 * 3.5
    found = trained.step()
    owed = trained.rule._sums[0]
    assert 0 < float(owed.norm()) < float(found.norm())
    components = matrix @ owed[0, :, :64] @ matrix.T
    assert int((components.abs() < 1e-4).sum()) >= 2


def test_the_workers_share_what_dense_sees():
    losses = []
    for rule in ("dense", "everything"):
        training = Training(TASKS["digits"], "momentum", 0.05, 6, 3)
        if rule == "dense":
            made = training.of(Dense, workers=1)
        else:
            made = training.of(Ours, "topk", {"density": 1.0})
        losses.append(training.run(made)["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_real_ranks_train_as_simulated_ones():
    pytest.importorskip("horovod.torch", exc_type=ImportError)
    run = Run(Line("digits", "momentum", "ours/100", 8), 0.05, 1)
    real = on_real_ranks(replace(run, is_real=True))
    training = Training(TASKS["digits"], "momentum", 0.05, 8, 1)
    rule = training.of(Ours, *NAMED["ours"](training, "100"))
    simulated = training.run(rule)
    # a loss is that of one rank's examples, and of all
    assert simulated["score"] == pytest.approx(real["score"], abs=0.5)


def test_quick_curves_do_not_enter_the_page_of_whole_ones(tmp_path, monkeypatch):
    from benchmarks import curves

    trained = []

    def train(line, seed, steps):
        trained.append(steps)
        return {"score": 90.0, "density": None, "bytes": 1, "work_ms": 1.0}

    monkeypatch.setattr(curves, "train", train)
    for quick in (True, False):
        curves.run(SimpleNamespace(output=tmp_path, quick=quick))
    whole = len(list(curves.lines())) * curves.SEEDS
    assert trained.count(curves.STEPS) == whole and trained.count(curves.QUICK_STEPS) > 0
    assert f"for {curves.STEPS} steps" in (tmp_path / "curves.md").read_text(encoding="utf-8")
