"""``hvd_sparse.ddp`` in one process: refusals, special steps, and what is read of optimizers."""

import copy
from functools import partial

import pytest

pytest.importorskip("torch")
import torch
import torch.distributed as dist
from muon import SingleDeviceMuon
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

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


OPTIONS = {"density": 0.1, "min_numel": 1, "allow_dense": False}


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


def test_a_parameter_that_was_frozen_too_early_is_named_with_the_remedy():
    model = DistributedDataParallel(model_of().module, find_unused_parameters=True)
    model.module[0].requires_grad_(False)
    handle = register(model, "topk", name="frozen", **OPTIONS)
    with pytest.raises(Exception, match=r"'0.*', which was frozen when register"):
        model(torch.ones(3, 8)).sum().backward()
    handle.close()


@pytest.mark.parametrize("case", ["another", "bound earlier", "the same"])
def test_updates_that_another_step_applies_are_told_once(case, caplog):
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step = optimizer.step
    handle = register(model, "topk", name=case, optimizer=optimizer, **OPTIONS)
    if case == "another":
        step = torch.optim.AdamW(model.parameters()).step
    elif case == "the same":
        step = optimizer.step
    for _ in range(3):
        model.zero_grad()
        model(torch.ones(3, 8)).sum().backward()
        step()
    handle.close()
    told = ["for a gradient, and applied its momentum" in each.message for each in caplog.records]
    assert sum(told) == (case != "the same"), caplog.messages


def test_states_of_compiled_and_plain_models_have_the_same_names():
    plain = model_of()
    compiled = DistributedDataParallel(torch.compile(plain.module, backend="eager"))
    names = [name for name, _ in plain.module.named_parameters()]
    for model in (plain, compiled):
        handle = register(model, "topk", **OPTIONS)
        model(torch.ones(3, 8)).square().sum().backward()
        state = handle.state_dict()
        assert list(state["model"]) == names and set(state["tensors"]) <= set(names)
        handle.load_state_dict(state)
        handle.close()


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
