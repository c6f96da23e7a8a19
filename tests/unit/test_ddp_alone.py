"""``hvd_sparse.ddp`` in one process: refusals, special steps, and optimizers handed over."""

import copy
from functools import partial

import pytest

pytest.importorskip("torch")
import torch
import torch.distributed as dist
from muon import SingleDeviceMuon, paired
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.optim.optimizer import register_optimizer_step_post_hook

from hvd_sparse.collectives.torch_distributed import _Started
from hvd_sparse.ddp import register
from hvd_sparse.errors import (
    ExchangeTimeout,
    InvalidOption,
    PeerFailure,
    SparseError,
    UnknownName,
    UnsupportedInput,
)
from hvd_sparse.frontend.torch.optimizer import read_optimizer, unhooked
from hvd_sparse.memories.adam_correction import AdamCorrection
from hvd_sparse.memories.momentum_correction import MomentumCorrection
from hvd_sparse.memories.muon_correction import MuonCorrection

pytestmark = pytest.mark.usefixtures("one_rank")


def model_of(*layers):
    torch.manual_seed(0)
    return DistributedDataParallel(nn.Sequential(*(layers or (nn.Linear(8, 6), nn.Linear(6, 2)))))


COMPRESSED = {"min_numel": 1, "allow_dense": False}
OPTIONS = {"density": 0.1, **COMPRESSED}


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (lambda: nn.Linear(2, 2), {}, "the model is Linear: first wrap it"),
        (lambda: torch.compile(model_of(), backend="eager"), {}, "register the .* model first"),
        (
            lambda: model_of(nn.Embedding(4, 3, sparse=True)),
            {},
            "'0.weight' has sparse g.*=False",
        ),
        (lambda: model_of(nn.Linear(3, 2, dtype=torch.complex64)), {}, "'0.weight' has dtype comp"),
        (model_of, {"groups": 2}, "DDP's buckets are the groups here"),
        (model_of, {"process_set": object()}, "process_set is Horovod's"),
        (model_of, {"memory": "no_such"}, "no_such"),
        (model_of, {"method": "auto"}, "method 'auto' needs Horovod; .*advise"),
        (model_of, {"method": "nothing"}, "method 'nothing' needs Horovod; .*noop_hook"),
        (model_of, {"method": None}, "the method is None: give its name"),
        (model_of, {"method": "ldtebs"}, r"is called 'ldtebs' \(did you mean 'ldte_bs'"),
        (model_of, {"grad_scaler": 3}, "grad_scaler is 3"),
        (model_of, {"optimizer": 3}, "optimizer is int"),
        (model_of, {"density": "hiding", "clip_grad_norm": 0.5}, "waits for all gradients"),
    ],
)
def test_what_cannot_be_is_refused_with_the_remedy(make, options, words):
    with pytest.raises((InvalidOption, UnknownName, UnsupportedInput), match=words):
        register(make(), **{"density": 0.1, **options})


@pytest.mark.filterwarnings("ignore:FSDP is switching")
def test_a_model_of_fsdp_is_refused():
    with pytest.raises(InvalidOption, match=r"DataParallel: FSDP gives hooks gradients that it"):
        register(FullyShardedDataParallel(nn.Linear(2, 2), device_id=torch.device("cpu")))
    sharded = nn.Linear(2, 2)
    fully_shard(sharded, mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(InvalidOption, match=r"FSDPLinear: FSDP gives hooks gradients that it"):
        register(sharded)


def test_a_second_hook_is_refused_by_name():
    model = model_of()
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    with pytest.raises(InvalidOption, match=r"hook 'fp16_compress_hook', and DDP accepts only one"):
        register(model, density=0.1)
    model = model_of()
    register(model, density=0.1)
    with pytest.raises(InvalidOption, match=r"hook 'sparse_hook', and DDP accepts only one"):
        register(model, density=0.1)
    with pytest.raises(RuntimeError, match="register_comm_hook"):
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    model = model_of()
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    with pytest.raises(InvalidOption, match="DDP accepts no further hook"):
        register(model, density=0.1)


def test_a_ddp_that_passes_buckets_over_or_reduces_gradients_beside_them_is_refused():
    bare = nn.Linear(2, 2)
    delayed = {"delay_all_reduce_named_params": [("weight", bare.weight)]}
    for name, options in {
        "skip_all_reduce_unused_params": {
            "find_unused_parameters": True,
            "skip_all_reduce_unused_params": True,
        },
        "delay_all_reduce_params": {**delayed, "param_to_hook_all_reduce": bare.bias},
    }.items():
        with pytest.raises(InvalidOption, match=f"DDP has {name}: "):
            register(DistributedDataParallel(bare, **options), density=0.1)


def test_a_compressor_is_made_again_from_its_config_is_not_copied_and_if_closed_refuses_its_model():
    model = model_of()
    handle = register(model, "topk", **OPTIONS)
    other = register(model_of(), "from_config", config=handle.config())
    assert other.configuration == handle.configuration
    with pytest.raises(InvalidOption, match=r"register\(model, 'from_config'.* model\.module"):
        copy.deepcopy(handle)
    handle.close()
    with pytest.raises(InvalidOption, match=r"closed, but DDP keeps its hook"):
        model(torch.ones(3, 8)).sum().backward()


def test_a_failed_step_leaves_no_loss_scale_and_ddp_ready_for_the_next():
    model, scales = model_of(), [8.0]
    options = {**OPTIONS, "on_nonfinite": "raise", "grad_scaler": lambda: scales[0]}
    made = register(model, "topk", **options)
    with pytest.raises(SparseError, match="NaN or Inf"):
        model(torch.full((2, 8), float("nan"))).sum().backward()
    assert not any(parameter.grad.any() for parameter in model.parameters())
    model.zero_grad()
    scales[0] = 2.0
    (2.0 * model(torch.ones(2, 8)).sum()).backward()
    plain = model_of().module
    plain(torch.ones(2, 8)).sum().backward()
    for key, state in made.state_dict()["tensors"].items():
        kept = state["arrays"]["residual"].view_as(model.module.get_parameter(key))
        applied = model.module.get_parameter(key).grad / 2.0
        assert torch.equal(applied + kept, plain.get_parameter(key).grad)


def test_an_error_of_the_loss_scale_is_raised_on_all_ranks_and_logged(caplog):
    """If it were raised on its own rank alone, the other ranks would wait for this rank."""

    def broken():
        raise RuntimeError("which scale?")

    model = model_of()
    register(model, "topk", **OPTIONS, grad_scaler=broken)
    with pytest.raises(PeerFailure, match="the loss scale is nan"):
        model(torch.ones(2, 8)).sum().backward()
    assert "grad_scaler raised an error" in caplog.text and "which scale?" in caplog.text


def test_states_go_between_compiled_and_plain_models():
    options, plain = {**OPTIONS, "name": "compiled"}, model_of()
    compiled = DistributedDataParallel(torch.compile(plain.module, backend="eager"))
    states = []
    for model in (plain, compiled):
        handle = register(model, "topk", **options)
        model(torch.ones(3, 8)).square().sum().backward()
        states.append(handle.state_dict())
        handle.close()
    first, second = states
    names = [name for name, _ in plain.module.named_parameters()]
    assert list(first["model"]) == list(second["model"]) == names
    # as the names were before, and still are where a program gives them
    for part in ("model", "tensors"):
        second[part] = {f"_orig_mod.{name}": told for name, told in second[part].items()}
    handle = register(model_of(), "topk", **options)
    assert handle.load_state_dict(second) == ([], [])
    kept = handle.state_dict()["tensors"]["0.weight"]["arrays"]["residual"]
    assert torch.equal(kept, second["tensors"]["_orig_mod.0.weight"]["arrays"]["residual"])
    assert kept.any()


ATTENTION = ["in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"]


@pytest.mark.parametrize(
    ("ignored", "reduced"),
    [
        (["in_proj_weight"], ATTENTION),  # which DDP reduces all the same
        (["out_proj.bias"], ATTENTION[:3]),
        ([".in_proj_weight"], ATTENTION[1:]),
    ],
)
def test_what_ddp_ignores_is_what_the_compressor_leaves_alone(ignored, reduced):
    bare, inputs = nn.MultiheadAttention(8, 1), torch.ones(3, 1, 8)
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(bare, ignored)
    model = DistributedDataParallel(bare)
    handle = register(model, "topk", density=1.0, min_numel=1, compress_1d=True)
    model(inputs, inputs, inputs)[0].sum().backward()
    assert list(handle.state_dict()["model"]) == reduced


MOMENTUM = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


@pytest.mark.parametrize(
    ("make", "hands_over", "words"),
    [
        (MOMENTUM, False, ["momentum 0.9", "optimizer=optimizer"]),
        (MOMENTUM, True, []),
        (partial(torch.optim.SGD, lr=0.1), False, []),
    ],
)
def test_accuracy_at_stake_is_told_once_with_the_remedy(make, hands_over, words, caplog):
    model = model_of()
    optimizer = make(model.parameters())
    options = {"optimizer": optimizer} if hands_over else {}
    register(model, "topk", density=0.01, min_numel=1, **options)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
    told = [text for text in caplog.messages if "accuracy" in text]
    assert len(told) == bool(words) and all(word in told[0] for word in words)


BOUND = 0.5


@pytest.mark.parametrize("sparse", [False, True])
def test_of_one_rank_alone_horovod_clips_nothing_and_the_step_does(sparse):
    gradients = pytest.importorskip("hvd_sparse.torch.gradients", exc_type=ImportError)
    rows, ends = torch.tensor([0, 2, 2]), []
    for is_ours in (True, False):
        weight = nn.Parameter(torch.linspace(-1.0, 1.0, 12).view(4, 3))
        optimizer, other = torch.optim.SGD([weight], 0.1), torch.optim.SGD([nn.Parameter()], 0.1)
        handle = gradients.clip_alone([weight], BOUND) if is_ours else None
        for _ in range(3):
            optimizer.zero_grad()
            looked_up = nn.functional.embedding(rows, weight, sparse=sparse and is_ours)
            looked_up.square().sum().backward()
            if handle is None:
                torch.nn.utils.clip_grad_norm_([weight], BOUND)
            other.step()
            optimizer.step()
        if handle is not None:
            handle.remove()
        ends.append(weight.detach())
    torch.testing.assert_close(*ends)


def test_a_gradient_that_is_not_finite_is_seen_as_ever():
    model = model_of()
    handle = register(model, "topk", density=0.5, min_numel=1, clip_grad_norm=BOUND)
    model(torch.full((2, 8), torch.inf)).sum().backward()
    assert model.module[0].weight.grad.isnan().all()
    assert handle.stats()["nonfinite_steps"] == 1


@pytest.mark.parametrize("set_to_none", [False, True])
@pytest.mark.parametrize("is_reduced_again", [False, True])
def test_gradients_that_ddp_moves_to_new_buckets_are_not_thrown_away(
    is_reduced_again, set_to_none, caplog
):
    """DDP moves them in the forward pass after its first backward pass."""
    bare = nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 2))
    model = DistributedDataParallel(bare, gradient_as_bucket_view=True)
    handle = register(model, "topk", **OPTIONS)
    model(torch.ones(2, 8)).sum().backward()
    loss = model(torch.ones(2, 8)).sum()
    if is_reduced_again:
        loss.backward()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.step()
    optimizer.zero_grad(set_to_none)
    tensors = handle.state_dict()["tensors"].values()
    assert {tensor["steps"] for tensor in tensors} == {1 + is_reduced_again}
    # A result that is really thrown away is noticed as ever.
    model(torch.ones(2, 8)).sum().backward()
    assert not any("thrown away" in text for text in caplog.messages)
    optimizer.zero_grad(set_to_none)
    model(torch.ones(2, 8)).sum().backward()
    assert any("thrown away" in text for text in caplog.messages)


@pytest.mark.parametrize("is_view", [False, True])
def test_a_pass_that_does_not_use_a_parameter_keeps_its_result_of_an_earlier_pass(is_view):
    ends = []
    for is_ours in (True, False):
        torch.manual_seed(0)
        options = {"find_unused_parameters": True, "gradient_as_bucket_view": is_view}
        tasks = nn.ModuleDict({name: nn.Linear(8, 6) for name in ("first", "second")})
        tasks.forward = lambda inputs, task, tasks=tasks: tasks[task](inputs)
        model = DistributedDataParallel(tasks, **options)
        if is_ours:
            handle = register(model, "topk", **{**OPTIONS, "density": 1.0})
        for task in ("first", "second"):
            model(torch.ones(2, 8), task).sum().backward()
            if is_ours:
                kept = handle.step.transactions._run.buckets.values()
                assert kept and not any(bucket.sending for bucket in kept)
        ends.append([parameter.grad.clone() for parameter in model.parameters()])
    torch.testing.assert_close(*ends)
    assert all(gradient.any() for gradient in ends[0])


def test_the_wait_for_the_nodes_of_the_ranks_has_a_limit(monkeypatch):
    is_done = _Started.is_done
    monkeypatch.setattr(
        _Started, "is_done", lambda self: self._name != "hvd_sparse.nodes" and is_done(self)
    )
    with pytest.raises(ExchangeTimeout, match=r"'hvd_sparse.nodes' did not finish in 0.1 s"):
        register(model_of(), "topk", **OPTIONS, exchange="auto", timeout_s=0.1)


# -- optimizers that are handed over --------------------------------------------------------------

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


def made(name):
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 6))
    return model, MAKERS[name](model.parameters())


def handed(model, optimizer, **options):
    """All of the model goes dense, so that its training is the optimizer's own."""
    options = {"min_numel": 10**6, **options}
    return register(model, "topk", density=1, optimizer=optimizer, **options)


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
    """And nothing is told where results are applied as they came."""
    clip = partial(torch.nn.utils.clip_grad_norm_, max_norm=0.1)
    (text,) = said_while_training(caplog, lambda model: clip(model.parameters()))
    assert text.startswith("gradients were multiplied by 0.0") and "updates of AdamW" in text
    assert "clip_grad_norm=1.0" in text
    caplog.clear()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    (text,) = said_while_training(caplog, lambda model: None, scaler=scaler)
    assert text.startswith("gradients were multiplied by 0.000976562 ")
    assert "grad_scaler=scaler" in text
    caplog.clear()
    loose = partial(clip, max_norm=1e3)
    assert said_while_training(caplog, lambda model: loose(model.parameters())) == []
    assert said_while_training(caplog, lambda model: None, scaler=scaler, grad_scaler=scaler) == []


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


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_a_schedule_may_be_made_before_the_compressor_or_behind_it(name):
    train = partial(trained, name, loss_of)
    before, behind = (train(hands_over=True, scheduled=when) for when in ("before", "behind"))
    plain = train(hands_over=False, scheduled="before")
    for one, other in zip(before, behind, strict=True):
        assert torch.equal(one, other)
    same(before, plain)


def test_an_optimizer_of_other_parameters_or_with_a_replaced_step_is_refused():
    (model, optimizer), (other, _) = made("sgd"), made("sgd")
    with pytest.raises(InvalidOption, match=r"'weight' is in none of the optimizer's"):
        handed(other, optimizer)
    assert type(optimizer) is torch.optim.SGD
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
