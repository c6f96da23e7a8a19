"""Densities that follow the learning rate have the mean that was asked for."""

import copy
import threading
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from compressors import required

from hvd_sparse.registry import SCHEDULES
from hvd_sparse.types import Pace

pytest.importorskip("torch")
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import lr_scheduler

from hvd_sparse.ddp import register
from hvd_sparse.errors import InvalidOption
from hvd_sparse.frontend.torch.optimizer import foresee
from hvd_sparse.memories.momentum_feedback import MomentumFeedback
from hvd_sparse.methods import METHODS
from hvd_sparse.methods.builder import density_for
from hvd_sparse.optimizer_memory import Rates
from hvd_sparse.schedules.learning_rate import LEAST

pytestmark = pytest.mark.usefixtures("one_rank")

STEPS = 30
SCHEDULERS = {
    "cosine": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, STEPS),
    "one cycle": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=STEPS),
    "warm-up and cosine": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [
            lr_scheduler.LinearLR(optimizer, 0.01, 1.0, 10),
            lr_scheduler.CosineAnnealingLR(optimizer, STEPS - 10),
        ],
        [10],
    ),
    "chained": lambda optimizer: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(optimizer, 0.1, 5), lr_scheduler.ExponentialLR(optimizer, 0.9)]
    ),
    "by group": lambda optimizer: lr_scheduler.LambdaLR(
        optimizer,
        [lambda t: 1 - t / STEPS] + [lambda t: 0.5**t] * (len(optimizer.param_groups) - 1),
    ),
}


def two_groups(lr=0.01):
    first, second = nn.Linear(64, 50, bias=False), nn.Linear(50, 40, bias=False)
    groups = [{"params": first.parameters()}, {"params": second.parameters(), "lr": 3 * lr}]
    return torch.optim.SGD(groups, lr=lr, momentum=0.9)


def test_a_group_that_stays_at_rate_0_sends_nothing_unless_every_group_does(caplog):
    optimizer, density = two_groups(), SCHEDULES.create("learning_rate", value=0.01, steps=STEPS)
    half = lr_scheduler.LambdaLR(optimizer, [lambda t: 1 - t / STEPS, lambda t: 0.0])
    rates = foresee(optimizer, half, STEPS)
    assert {density.density_at(rates.pace(0.0, 1, step)) for step in range(STEPS)} == {LEAST}
    assert density.density_at(rates.pace(0.01, 0, 0)) > 0.01
    assert not caplog.records
    assert density.density_at(rates.pace(0.5, 1, 3)) == 0.01
    assert "is 0.5 at step 3, and 0 was predicted" in caplog.text
    optimizer = two_groups()
    none = lr_scheduler.LambdaLR(optimizer, lambda t: 0.0)
    with pytest.raises(InvalidOption, match=r"parameter group 0 is 0\.0 on average"):
        foresee(optimizer, none, STEPS)


def test_a_density_is_at_most_1_and_above_0_whatever_the_rate():
    schedule = SCHEDULES.create("learning_rate", value=0.5)
    assert schedule.density_at(Pace(3.0, 1.0)) == 1.0
    for rate in (0.0, float("nan"), -1.0):
        assert 0 < schedule.density_at(Pace(rate, 1.0)) < 1e-6
    # A first rate of 0 is nothing to compare with, and what is no mean is never exceeded.
    assert schedule.density_at(Pace(0.1, 0.0, is_mean=False)) == 0.5
    assert schedule.density_at(Pace(0.2, 0.1, is_mean=False)) == 0.5
    assert schedule.density_at(Pace(0.01, 0.1, is_mean=False)) == pytest.approx(0.05)


def test_the_density_of_a_run_sends_an_entry_five_times_within_bounds():
    found = [density_for(steps) for steps in (1, 500, 1_000, 2_500, 10**7)]
    assert found == [0.01, 0.01, 0.005, 0.002, 0.002]


def trained(count, name="cosine", every=1, method="ldte_bs", **options):
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(100, 100, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scheduler = SCHEDULERS[name](optimizer) if name in SCHEDULERS else None
    if name == "plateau":
        scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    given = {} if name == "none" else {"scheduler": scheduler}
    handle = register(model, method, optimizer=optimizer, **given, allow_dense=False, **options)
    sent = []
    for step in range(count):
        optimizer.zero_grad()
        model(torch.randn(4, 100)).square().mean().backward()
        optimizer.step()
        if scheduler is not None and (step + 1) % every == 0 and step + 1 < STEPS:
            scheduler.step(*[1.0] * (name == "plateau"))
        sent.append(handle.stats()["tensors"]["weight"]["entries_sent"])
    return handle, np.diff([0, *sent])


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_run_sends_as_many_entries_as_were_asked_for_and_most_where_the_rate_is_high(name):
    handle, sent = trained(STEPS, name, method="topk", steps=STEPS)
    assert handle.configuration.codec.id == "sign_mean"
    assert handle.configuration.schedule.steps == STEPS
    words = "along the learning rate: 0.01 on average over the run, with codec sign_mean"
    assert words in handle.summary()
    assert sent.mean() == pytest.approx(100, rel=0.02)  # 1 in 100, of 10,000
    assert sent.max() > 1.5 * 100 and sent.min() < 60


def test_the_one_short_line_holds_for_every_method_with_a_density():
    for method in (each for each in METHODS if "density" in required(each)):
        handle, _ = trained(2, method=method, steps=STEPS)
        assert handle.configuration.density(0) == 0.01, method
        assert handle.configuration.follows_rate, method


def test_a_density_that_is_low_for_the_run_is_told_with_one_that_would_do(caplog):
    warmup = {"id": "exponential_warmup", "value": 0.001, "stage_steps": 200}
    for told, options in (
        ("0.001 sends each entry about 1 times in a run of 1000 steps", {"density": 0.001}),
        ("but about 5 times are needed: use density 0.005 or more", {"density": 0.001}),
        ("", {"density": 0.005}),
        ("", {}),
        ("", {"density": 0.001, "schedule": warmup}),  # of which the first steps send enough
        ("", {"density": {"*": 0.001}}),
    ):
        caplog.clear()
        model = DistributedDataParallel(nn.Linear(100, 100))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        register(model, "topk", steps=1000, optimizer=optimizer, **options)
        said = [r.getMessage() for r in caplog.records if "each entry" in r.getMessage()]
        assert len(said) == bool(told) and all(told in text for text in said), options


def test_an_explicit_density_codec_or_schedule_is_kept():
    handle, sent = trained(STEPS, method="topk", steps=STEPS, density=0.05, codec="golomb")
    assert handle.configuration.codec.id == "golomb"
    assert sent.mean() == pytest.approx(500, rel=0.02)
    kept = {"id": "dense_warmup", "warmup_steps": 1}
    handle, _ = trained(1, "none", method="topk", steps=STEPS, schedule=kept)
    assert handle.configuration.schedule.id == "dense_warmup"


def test_without_a_mean_the_density_is_a_part_of_that_asked_for_and_that_is_told(caplog):
    for name, expected in (("none", [100] * 4), ("plateau", [100, 100, 10, 1])):
        _, sent = trained(4, name, method="topk", steps=STEPS)
        assert list(sent) == expected
        told = [text for text in caplog.messages if "learning rate" in text]
        assert len(told) == (name == "plateau")
    assert all("fewer bytes" in text and "Plateau follows a metric" in text for text in told)


def test_a_scheduler_that_is_stepped_once_an_epoch_is_found_out_and_its_remedy_is_right(caplog):
    trained(25, "cosine", every=1000, method="topk", steps=STEPS)
    told = [each.message for each in caplog.records if "once per epoch" in each.message]
    assert len(told) == 1
    caplog.clear()
    schedule = {"id": "learning_rate", "steps": STEPS}
    told = {"steps": 3 * STEPS, "schedule": schedule, "density": 0.01}
    trained(3 * STEPS, "cosine", every=3, method="topk", **told)
    assert not [each for each in caplog.records if "once per epoch" in each.message]


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("none", {"steps": 0}, "steps is 0"),
        ("none", {"steps": 1.5}, "steps is 1.5"),
        ("none", {"steps": 5, "method": "adacomp"}, "leave steps out"),
        ("cosine", {"density": 0.01}, "does not follow the learning rate"),
        ("cosine", {"density": 0.01, "schedule": {"id": "learning_rate"}}, "without steps"),
        ("one cycle", {"steps": 2 * STEPS}, "could not be stepped so often"),
    ],
)
def test_what_cannot_be_followed_is_an_error_with_its_remedy(name, options, says):
    with pytest.raises(InvalidOption, match=says):
        trained(1, name, **options)


class Trainer:
    """An object that cannot be copied, with the rate of the next step."""

    def __init__(self):
        self.lock, self.calls = threading.Lock(), 0

    def factor(self, step):
        self.calls += 1
        return 0.5**step


class Halving(lr_scheduler.LambdaLR):
    """A scheduler that is its own function's object."""

    def __init__(self, optimizer):
        super().__init__(optimizer, self.factor)

    def factor(self, step):
        return 0.5**self.last_epoch


def small():
    return torch.optim.SGD([nn.Parameter(torch.ones(2))], 0.8)


def test_methods_are_followed_without_a_copy_of_their_objects_or_a_change_of_them():
    trainer = Trainer()
    for make in (
        lambda o: lr_scheduler.LambdaLR(o, trainer.factor),
        lambda o: lr_scheduler.SequentialLR(
            o, [lr_scheduler.LambdaLR(o, partial(trainer.factor))], []
        ),
        Halving,
    ):
        scheduler, calls = make(optimizer := small()), trainer.calls
        assert foresee(optimizer, scheduler, 3).path == [[0.8], [0.4], [0.2]]
        assert trainer.calls == calls


def test_a_scheduler_that_cannot_be_copied_is_refused_with_the_remedy():
    class Callable(Trainer):
        __call__ = Trainer.factor

    with pytest.raises(InvalidOption, match=r"LambdaLR.*copied.*lock.*give it functions"):
        foresee(optimizer := small(), lr_scheduler.LambdaLR(optimizer, Callable()), 3)


def test_steps_want_an_optimizer_and_a_scheduler_of_it_that_was_not_stepped():
    model = DistributedDataParallel(nn.Linear(100, 100))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(InvalidOption, match="give optimizer="):
        register(model, steps=5)
    with pytest.raises(InvalidOption, match="give optimizer="):
        register(model, density=0.1, schedule={"id": "learning_rate"})
    other = lr_scheduler.StepLR(two_groups(), 5)
    with pytest.raises(InvalidOption, match="not belong to this optimizer"):
        register(model, steps=5, optimizer=optimizer, scheduler=other)
    scheduler = lr_scheduler.StepLR(optimizer, 5)
    optimizer.step()
    scheduler.step()
    for stepped in (scheduler, lr_scheduler.ChainedScheduler([scheduler])):
        with pytest.raises(InvalidOption, match="stepped 1 times already"):
            register(model, steps=5, optimizer=optimizer, scheduler=stepped)


@pytest.mark.parametrize("loads_early", [False, True])
@pytest.mark.parametrize("is_foreseen", [False, True])
def test_a_run_that_goes_on_from_a_checkpoint_sends_what_it_would_have_sent(
    is_foreseen, loads_early, caplog
):
    """Also if the first learning rate is now another, as after a change of the number of ranks."""

    def run(until, saved=None):
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Linear(100, 100, bias=False))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.015 if saved else 0.01)
        if is_foreseen:
            scheduler = lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
        else:
            scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.9, patience=0)
        if saved is not None and loads_early:
            optimizer.load_state_dict(saved[1])
        handle = register(model, optimizer=optimizer, scheduler=scheduler, steps=STEPS)
        parts = (model, optimizer, scheduler, handle)
        if saved is not None:
            for part, state in zip(parts, saved):
                part.load_state_dict(state)
        for step in range(scheduler.last_epoch, until):
            torch.manual_seed(step)
            optimizer.zero_grad()
            model(torch.randn(4, 100)).square().mean().backward()
            optimizer.step()
            scheduler.step(*[1.0] * (not is_foreseen))
        states = copy.deepcopy([part.state_dict() for part in parts])
        handle.close()
        return states

    straight, resumed = run(8), run(8, run(4))
    assert torch.equal(straight[0]["module.weight"], resumed[0]["module.weight"])
    arrays = [states[3]["tensors"]["weight"]["arrays"] for states in (straight, resumed)]
    assert all(torch.equal(arrays[0][name], arrays[1][name]) for name in arrays[0])
    assert "was predicted" not in caplog.text


def test_the_mean_over_a_run_of_keras_is_the_density_that_was_asked_for():
    tf = pytest.importorskip("tensorflow")
    from hvd_sparse.tensorflow.optimizer import foresee as foresee_keras

    schedules = tf.keras.optimizers.schedules

    density = SCHEDULES.create("learning_rate", value=0.01, steps=STEPS)
    for schedule in (
        schedules.CosineDecay(0.1, STEPS),
        schedules.PiecewiseConstantDecay([10, 20], [0.1, 0.01, 0.001]),
    ):
        for kind in (tf.keras.optimizers.SGD, tf.keras.optimizers.legacy.SGD):
            rates = foresee_keras(kind(schedule, momentum=0.9), None, STEPS)
            paces = [rates.pace(float(schedule(step)), 0, step) for step in range(STEPS)]
            asked = [density.density_at(pace) for pace in paces]
            assert np.mean(asked) == pytest.approx(0.01, rel=1e-6)
    with pytest.raises(InvalidOption, match="found in the optimizer"):
        foresee_keras(tf.keras.optimizers.SGD(0.1), schedule, STEPS)
    constant = foresee_keras(tf.keras.optimizers.SGD(0.1), None, STEPS)
    assert not constant.is_foreseen and constant.pace(0.1, 0, 3).share == pytest.approx(1)


def test_updates_of_several_batches_have_the_predicted_rates_of_their_last_batches():
    tf = pytest.importorskip("tensorflow")
    pytest.importorskip("horovod.tensorflow", exc_type=ImportError)
    from hvd_sparse.tensorflow.follower import Follower
    from hvd_sparse.tensorflow.optimizer import foresee as foresee_keras

    schedule = tf.keras.optimizers.schedules.CosineDecay(0.1, 4 * STEPS)
    optimizer = tf.keras.optimizers.SGD(schedule, momentum=0.9)
    follower = Follower(optimizer, MomentumFeedback())
    follower.rates = foresee_keras(optimizer, None, STEPS)
    of_horovod = type(optimizer).from_config(optimizer.get_config())
    of_horovod._agg_helper = SimpleNamespace(backward_passes_per_step=4)
    follower.meet(of_horovod)
    rates = [[float(schedule(4 * step + 3))] for step in range(STEPS)]
    assert np.ravel(follower.rates.path) == pytest.approx(np.ravel(rates), rel=1e-4)


def test_rates_are_compared_with_the_predicted_ones_until_the_last_of_these(caplog):
    rates = Rates([[0.1], [0.2]] * 20, is_foreseen=True)
    rates.pace(0.9, 0, step=40)
    rates.pace(0.0, 0, step=39)  # a layer that the program has frozen
    assert not caplog.records
    rates.pace(0.9, 0, step=39)
    assert "the learning rate is 0.9 at step 39, and 0.2 was predicted" in caplog.text


def test_a_rate_as_predicted_is_compared_with_one_prediction(monkeypatch):
    compared, foreseen = [], Rates._foreseen
    monkeypatch.setattr(
        Rates,
        "_foreseen",
        lambda *asked: compared.append(len(found := foreseen(*asked))) or found,
    )
    rates = Rates([[0.1]] * 10_000, is_foreseen=True)
    paces = [rates.pace(0.1, 0, step) for step in (9_000, 9_000, 9_001)]
    assert compared == [1, 1] and len(set(paces)) == 1


def test_a_tensor_that_some_steps_do_not_use_may_lag_behind_the_scheduler(caplog):
    first, second = (nn.Linear(100, 100, bias=False) for _ in range(2))
    model = nn.ModuleList([first, second])
    model.forward = lambda x, both: second(first(x)) if both else first(x)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    model = DistributedDataParallel(model, find_unused_parameters=True)
    handle = register(model, optimizer=optimizer, scheduler=scheduler, steps=STEPS)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(4, 100), step >= STEPS // 2).square().mean().backward()
        optimizer.step()
        scheduler.step()
    tensors = handle.state_dict()["tensors"]
    assert [tensors[name]["steps"] for name in ("0.weight", "1.weight")] == [STEPS, STEPS // 2]
    assert "was predicted" not in caplog.text
