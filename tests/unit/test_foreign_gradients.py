"""Optimizers that are handed over, under DDP: gradients outside the compressor, scalers, hooks."""

from functools import partial

import pytest

pytest.importorskip("torch")
import torch
from muon import SingleDeviceMuon, paired
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.optim.optimizer import register_optimizer_step_post_hook

from hvd_sparse.ddp import register
from hvd_sparse.errors import InvalidOption
from hvd_sparse.frontend.torch.optimizer import read_optimizer, unhooked
from hvd_sparse.memories.adam_correction import AdamCorrection
from hvd_sparse.memories.momentum_correction import MomentumCorrection
from hvd_sparse.memories.muon_correction import MuonCorrection

STEPS = 5
MAKERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.02, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adam": lambda p: torch.optim.Adam(p, 0.02, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, 0.02, weight_decay=0.1),
    "nadam": lambda p: torch.optim.NAdam(p, 0.02),
    "muon": paired,
    "fused_sgd": lambda p: torch.optim.SGD(p, 0.02, momentum=0.9, fused=True),
    "fused_adamw": lambda p: torch.optim.AdamW(p, 0.02, fused=True),
}
of_each_optimizer = pytest.mark.parametrize("name", MAKERS)
pytestmark = pytest.mark.usefixtures("one_rank")


def made(name):
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 6))
    return model, MAKERS[name](model.parameters())


def handed(model, optimizer, **options):
    """All of the model goes dense, so that its training is the optimizer's own."""
    options = {"min_numel": 10**6, **options}
    return register(model, "topk", density=1, optimizer=optimizer, **options)


COMPRESSED = {"min_numel": 1, "allow_dense": False}


def loss_of(model, step):
    return model(torch.full((2, 8), step - 2.0)).square().sum()


def take_step(optimizer, loss, scaler, between=lambda: None):
    (loss if scaler is None else scaler.scale(loss)).backward()
    between()
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()


def same(mine, plain):
    for one, other in zip(mine, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def trained(name, loss, *, hands_over, scaler=None, scheduled=""):
    model, optimizer = made(name)
    options = {} if scaler is None else {"grad_scaler": scaler}
    scheduler = CosineAnnealingLR(optimizer, STEPS) if scheduled == "before" else None
    if hands_over:
        handed(model, optimizer, **options)
    scheduler = CosineAnnealingLR(optimizer, STEPS) if scheduled == "behind" else scheduler
    for step in range(STEPS):
        optimizer.zero_grad()
        take_step(optimizer, loss(model, step), scaler)
        if scheduler is not None:
            scheduler.step()
    return [p.detach() for p in model.parameters()]


@of_each_optimizer
def test_a_model_that_is_trained_without_ddp_is_trained_by_the_optimizer(name):
    def loss(model, step):
        return loss_of(model.module, step)

    same(trained(name, loss, hands_over=True), trained(name, loss, hands_over=False))


@pytest.mark.parametrize("passed_by", ["module", "no_sync", "frozen"])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_gradient_that_passes_the_compressor_by_is_refused(passed_by, set_to_none):
    model, optimizer = made("sgd")
    handed(model, optimizer)
    for _ in range(2):
        optimizer.zero_grad(set_to_none)
        loss_of(model, 0).backward()
        optimizer.step()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer.zero_grad(set_to_none)
    if passed_by == "module":
        loss_of(model.module, 1).backward()
    elif passed_by == "no_sync":
        with model.no_sync():
            loss_of(model, 1).backward()
    else:  # DDP waits for the gradient of the bias, and reduces nothing
        model.module.bias.requires_grad_(False)
        loss_of(model, 1).backward()
    words = r"'weight' has a gradient that.*not through its \.mod.*find_unused_parameters=True"
    with pytest.raises(InvalidOption, match=words):
        optimizer.step()
    for parameter, old in zip(model.parameters(), before):
        assert torch.equal(parameter, old)


@of_each_optimizer
def test_a_scaler_unscales_and_skips_whether_the_optimizer_is_fused_or_not(name):
    def loss(model, step):
        return loss_of(model, step) * (torch.inf if step == 2 else 1.0)

    ends = []
    for hands_over in (True, False):
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
        ends.append(trained(name, loss, hands_over=hands_over, scaler=scaler))
        assert scaler.get_scale() == 2.0**15, "one step was skipped"
    same(*ends)


def test_step_hooks_are_called_once_a_step():
    model, optimizer = made("adamw")
    called = []
    optimizer.register_step_pre_hook(lambda *_: called.append("pre"))
    optimizer.register_step_post_hook(lambda *_: called.append("post"))
    of_all = register_optimizer_step_post_hook(lambda *_: called.append("global"))
    handed(model, optimizer)
    for step in range(2):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
    of_all.remove()
    assert called == ["pre", "post", "global"] * 2


@pytest.mark.parametrize(
    ("base", "memory"),
    [
        (torch.optim.SGD, MomentumCorrection),
        (torch.optim.Adam, AdamCorrection),
        (torch.optim.AdamW, AdamCorrection),
        (torch.optim.NAdam, AdamCorrection),
        *((muon, MuonCorrection) for muon in [getattr(torch.optim, "Muon", None)] if muon),
        (SingleDeviceMuon, MuonCorrection),
    ],
    ids=lambda each: each.__name__,
)
@pytest.mark.parametrize("base_was_made", [True, False])
def test_a_derived_optimizer_that_only_adds_options_is_known(
    base, memory, base_was_made, monkeypatch
):
    monkeypatch.setattr(base, "step", unhooked(base.step))

    class Named(base):
        def __init__(self, parameters, label):
            super().__init__(parameters, lr=0.1)
            self.label = label

    class Other(base):
        def step(self, closure=None):
            return super().step(closure)

    parameters = [nn.Parameter(torch.zeros(2, 2))]
    if base_was_made:
        base(parameters, lr=0.1)
    assert memory in read_optimizer(Named(parameters, "mine")).memories
    assert not read_optimizer(Other(parameters, lr=0.1)).memories


def said_while_training(caplog, between, *, scaler=None, **options):
    model, optimizer = made("adamw")
    handed(model, optimizer, **COMPRESSED, **options)
    for step in range(3):
        optimizer.zero_grad()
        take_step(optimizer, loss_of(model, step) * step, scaler, lambda: between(model))
    return caplog.messages


def test_clipping_what_came_back_and_an_unknown_scaler_are_told_once_with_the_remedy(caplog):
    clip = partial(torch.nn.utils.clip_grad_norm_, max_norm=0.1)
    (text,) = said_while_training(caplog, lambda model: clip(model.parameters()))
    assert text.startswith("gradients were multiplied by 0.0") and "updates of AdamW" in text
    assert "clip_grad_norm=1.0" in text
    caplog.clear()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    (text,) = said_while_training(caplog, lambda model: None, scaler=scaler)
    assert text.startswith("gradients were multiplied by 0.000976562 ")
    assert "grad_scaler=scaler" in text


@pytest.mark.parametrize(("name", "count"), [("sgd", 1), ("adam", 1), ("adamw", 0)])
def test_weight_decay_of_weights_that_moved_before_the_step_is_told_once(name, count, caplog):
    model, optimizer = made(name)
    handed(model, optimizer, **COMPRESSED)
    for step in range(4):
        for move in (0.05, -0.05) if step else (0.0,):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            with torch.no_grad():
                for parameter in model.parameters() if move else ():
                    parameter.add_(move)
        optimizer.step()
        assert step or not caplog.messages
    told = [text for text in caplog.messages if "its weight decay of 0.1" in text]
    assert len(told) == count
    assert not told or "use AdamW" in told[0]


@pytest.mark.parametrize(
    ("sent", "applied", "count"), [(0.0, 0.1, 1), (0.1, 0.0, 1), (0.0, 0.0, 0), (0.1, 0.2, 0)]
)
def test_a_learning_rate_of_0_in_the_backward_pass_or_in_the_step_alone_is_told_once(
    sent, applied, count, caplog
):
    model, optimizer = made("sgd")
    handed(model, optimizer, **COMPRESSED)
    for step in range(3):
        optimizer.zero_grad()
        optimizer.param_groups[0]["lr"] = sent
        loss_of(model, step).backward()
        optimizer.param_groups[0]["lr"] = applied
        optimizer.step()
    told = [text for text in caplog.messages if "set the rate before backward()" in text]
    assert len(told) == count
    words = f"the learning rate of 'weight' was {sent:g} in the backward pass and is {applied:g}"
    assert not told or told[0].startswith(words)


def test_nothing_is_told_where_results_are_applied_as_they_came(caplog):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    clip = partial(torch.nn.utils.clip_grad_norm_, max_norm=1e3)
    assert said_while_training(caplog, lambda model: clip(model.parameters())) == []
    assert said_while_training(caplog, lambda model: None, scaler=scaler, grad_scaler=scaler) == []


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_a_schedule_may_be_made_before_the_compressor_or_behind_it(name):
    train = partial(trained, name, loss_of)
    before, behind = (train(hands_over=True, scheduled=when) for when in ("before", "behind"))
    plain = train(hands_over=False, scheduled="before")
    for one, other in zip(before, behind, strict=True):
        assert torch.equal(one, other)
    same(before, plain)


def test_a_step_that_somebody_put_on_the_object_is_refused():
    model, optimizer = made("sgd")
    optimizer.step = optimizer.step
    with pytest.raises(InvalidOption, match="was replaced on the object"):
        handed(model, optimizer)


def test_an_optimizer_whose_compressor_is_closed_takes_no_steps_without_its_moments():
    model, optimizer = made("adam")
    handle = handed(model, optimizer, **COMPRESSED)
    take_step(optimizer, loss_of(model, 0), None)
    handle.close()
    optimizer.zero_grad()
    loss_of(model.module, 1).backward()
    with pytest.raises(InvalidOption, match=r"closed.*load optimizer.state_dict\(\) into it"):
        optimizer.step()
    plain = MAKERS["adam"](model.parameters())
    plain.load_state_dict(optimizer.state_dict())
    assert all(state["step"] == 1 for state in plain.state.values())
    plain.step()
