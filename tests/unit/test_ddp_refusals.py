"""``hvd_sparse.ddp`` in one process: what it refuses, by name, and gradients that it clips."""

import copy
from functools import partial

import pytest

pytest.importorskip("torch")
import torch
import torch.distributed as dist
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

pytestmark = pytest.mark.usefixtures("one_rank")


def model_of(*layers):
    torch.manual_seed(0)
    return DistributedDataParallel(nn.Sequential(*(layers or (nn.Linear(8, 6), nn.Linear(6, 2)))))


@pytest.fixture
def model():
    return model_of()


OPTIONS = {"density": 0.1, "min_numel": 1, "allow_dense": False}


@pytest.fixture
def handle(model):
    return register(model, "topk", **OPTIONS)


def test_a_bare_model_is_refused():
    with pytest.raises(InvalidOption, match=r"the model is Linear: first wrap it"):
        register(nn.Linear(2, 2), density=0.1)


@pytest.mark.parametrize(("method", "remedy"), [("auto", "advise"), ("nothing", "noop_hook")])
def test_a_method_that_needs_horovod_is_refused_with_what_to_use_instead(model, method, remedy):
    with pytest.raises(InvalidOption, match=rf"method '{method}' needs Horovod; .*{remedy}"):
        register(model, method, density=0.1)


@pytest.mark.filterwarnings("ignore:FSDP is switching")
def test_a_model_of_fsdp_is_refused():
    with pytest.raises(InvalidOption, match=r"DataParallel: FSDP gives hooks gradients that it"):
        register(FullyShardedDataParallel(nn.Linear(2, 2), device_id=torch.device("cpu")))
    sharded = nn.Linear(2, 2)
    fully_shard(sharded, mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(InvalidOption, match=r"FSDPLinear: FSDP gives hooks gradients that it"):
        register(sharded)


def test_a_model_that_was_compiled_first_is_refused(model):
    with pytest.raises(InvalidOption, match=r"register the DistributedDataParallel model first"):
        register(torch.compile(model, backend="eager"), density=0.1)


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


def test_sparse_and_complex_gradients_are_refused_by_name():
    with pytest.raises(UnsupportedInput, match=r"'0.weight' has sparse gradients.*sparse=False"):
        register(model_of(nn.Embedding(4, 3, sparse=True), nn.Linear(3, 2)), density=0.1)
    with pytest.raises(UnsupportedInput, match=r"'0.weight' has dtype complex64"):
        register(model_of(nn.Linear(3, 2, dtype=torch.complex64)), density=0.1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"groups": 2}, "DDP's buckets are the groups here"),
        ({"process_set": object()}, "process_set is Horovod's"),
        ({"memory": "no_such"}, "no_such"),
        ({"method": None}, "the method is None: give its name"),
        ({"method": "ldtebs"}, r"no method is called 'ldtebs' \(did you mean 'ldte_bs'"),
        ({"grad_scaler": 3}, "grad_scaler is 3"),
        ({"optimizer": 3}, "optimizer is int"),
        ({"density": "hiding", "clip_grad_norm": 0.5}, "which waits for all gradients"),
    ],
)
def test_options_that_cannot_be_are_refused(options, words):
    with pytest.raises((InvalidOption, UnknownName), match=words):
        register(model_of(), **{"density": 0.1, **options})


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


def test_a_closed_compressor_refuses_its_model(model, handle):
    handle.close()
    with pytest.raises(InvalidOption, match=r"closed, but DDP keeps its hook"):
        model(torch.ones(3, 8)).sum().backward()


def test_from_config_makes_an_equal_compressor(handle):
    other = register(model_of(), "from_config", config=handle.config())
    assert other.configuration == handle.configuration


def test_a_copy_is_refused_with_what_to_copy_instead(handle):
    with pytest.raises(InvalidOption, match=r"register\(model, 'from_config'.* model\.module"):
        copy.deepcopy(handle)


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


class Rooted(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.layer = nn.Parameter(torch.ones(6)), nn.Linear(8, 6)

    def forward(self, inputs):
        return self.layer(inputs) * self.scale


@pytest.mark.parametrize(
    ("ignored", "reduced"),
    [
        (["scale"], ["scale", "layer.weight", "layer.bias"]),  # which DDP reduces all the same
        (["layer.bias"], ["scale", "layer.weight"]),
        ([".scale"], ["layer.weight", "layer.bias"]),
    ],
)
def test_what_ddp_ignores_is_what_the_compressor_leaves_alone(ignored, reduced):
    bare = Rooted()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(bare, ignored)
    model = DistributedDataParallel(bare)
    handle = register(model, "topk", density=1.0, min_numel=1, compress_1d=True)
    model(torch.ones(3, 8)).sum().backward()
    assert list(handle.state_dict()["model"]) == reduced


MOMENTUM = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


@pytest.mark.parametrize(
    ("make", "hands_over", "density", "words"),
    [
        (MOMENTUM, False, 0.01, ["momentum 0.9", "optimizer=optimizer"]),
        (torch.optim.RMSprop, False, 0.01, ["optimizer=optimizer"]),
        (torch.optim.RMSprop, True, 0.01, ["RMSprop: no memory can do this optimizer's work"]),
        (MOMENTUM, True, 0.01, []),
        (MOMENTUM, False, 0.5, []),
        (partial(torch.optim.SGD, lr=0.1), False, 0.01, []),
    ],
)
def test_accuracy_at_stake_is_told_once_with_the_remedy(make, hands_over, density, words, caplog):
    model = model_of()
    optimizer = make(model.parameters())
    options = {"optimizer": optimizer} if hands_over else {}
    register(model, "topk", density=density, min_numel=1, **options)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
    told = [text for text in caplog.messages if "accuracy" in text]
    assert len(told) == bool(words) and all(word in told[0] for word in words)


def test_an_optimizer_of_other_parameters_is_refused():
    model, other = model_of(), model_of()
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
    with pytest.raises(InvalidOption, match=r"'0.weight' is in none of the optimizer's"):
        register(model, "topk", density=0.1, optimizer=optimizer)
    assert type(optimizer) is torch.optim.SGD


BOUND, STEPS = 0.5, 6
MAKERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    "adamw": lambda p: torch.optim.AdamW(p, 0.02),
    "plain": lambda p: torch.optim.SGD(p, 0.1),
}


def trained(name, *, registered, scaled=False):
    torch.manual_seed(0)
    layers = nn.Linear(8, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 2)
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.002)
    optimizer = MAKERS[name](model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=scaled)
    if registered:
        options = {"min_numel": 10**6, "optimizer": optimizer}
        if name == "plain":
            options = {"min_numel": 1, "compress_1d": True, "allow_dense": False}
        if scaled:
            options["grad_scaler"] = scaler
        handle = register(model, "topk", density=1.0, clip_grad_norm=BOUND, **options)
    tops = []
    for step in range(STEPS):
        optimizer.zero_grad()
        # the last steps are within the bound
        loss = model(torch.full((3, 8), step - 2.0)).square().mean() * 4.0 ** (2 - step)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        if not registered:
            torch.nn.utils.clip_grad_norm_(model.parameters(), BOUND)
        tops.append(float(model.module[0].weight.grad.abs().max()))
        scaler.step(optimizer)
        scaler.update()
    assert not registered or len(handle.step.buckets) > 1 or name != "plain"
    return [p.detach() for p in model.parameters()], tops


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("name", MAKERS)
def test_everything_sent_trains_as_with_torchs_clipping(name, scaled):
    ends, tops = trained(name, registered=True, scaled=scaled)
    plain_ends, plain_tops = trained(name, registered=False)
    for one, other in zip(ends, plain_ends, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    if name == "plain":
        assert tops == pytest.approx(plain_tops, rel=1e-4)


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


def test_a_gradient_that_is_not_finite_is_seen_as_ever(model):
    handle = register(model, "topk", density=0.5, min_numel=1, clip_grad_norm=BOUND)
    model(torch.full((2, 8), torch.inf)).sum().backward()
    assert model.module[0].weight.grad.isnan().all()
    assert handle.stats()["nonfinite_steps"] == 1


@pytest.mark.parametrize("is_reduced_again", [False, True])
def test_gradients_that_ddp_moves_to_new_buckets_are_not_thrown_away(is_reduced_again, caplog):
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
    optimizer.zero_grad()
    tensors = handle.state_dict()["tensors"].values()
    assert {tensor["steps"] for tensor in tensors} == {1 + is_reduced_again}
    # A result that is really thrown away is noticed as ever.
    model(torch.ones(2, 8)).sum().backward()
    assert not any("thrown away" in text for text in caplog.messages)
    optimizer.zero_grad()
    model(torch.ones(2, 8)).sum().backward()
    assert any("thrown away" in text for text in caplog.messages)


def test_views_of_a_bucket_that_are_zeroed_count_as_thrown_away(caplog):
    """Nothing but the program changes such a gradient after its result was returned."""
    model = DistributedDataParallel(nn.Linear(8, 6, bias=False), gradient_as_bucket_view=True)
    handle = register(model, "topk", **OPTIONS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):  # DDP moves the gradients of the first pass
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    model(torch.ones(2, 8)).sum().backward()
    optimizer.zero_grad(set_to_none=False)
    (tensor,) = handle.state_dict()["tensors"].values()
    assert tensor["steps"] == 2 and "thrown away" in caplog.text


class Tasks(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 6), nn.Linear(8, 6)

    def forward(self, inputs, task):
        return getattr(self, task)(inputs)


@pytest.mark.parametrize("is_view", [False, True])
def test_a_pass_that_does_not_use_a_parameter_keeps_its_result_of_an_earlier_pass(is_view):
    ends = []
    for is_ours in (True, False):
        torch.manual_seed(0)
        options = {"find_unused_parameters": True, "gradient_as_bucket_view": is_view}
        model = DistributedDataParallel(Tasks(), **options)
        if is_ours:
            register(model, "topk", **{**OPTIONS, "density": 1.0})
        for task in ("first", "second"):
            model(torch.ones(2, 8), task).sum().backward()
        ends.append([parameter.grad.clone() for parameter in model.parameters()])
    torch.testing.assert_close(*ends)
    assert all(gradient.any() for gradient in ends[0])


def test_the_wait_for_the_nodes_of_the_ranks_has_a_limit(model, monkeypatch):
    is_done = _Started.is_done
    monkeypatch.setattr(
        _Started, "is_done", lambda self: self._name != "hvd_sparse.nodes" and is_done(self)
    )
    with pytest.raises(ExchangeTimeout, match=r"'hvd_sparse.nodes' did not finish in 0.1 s"):
        register(model, "topk", **OPTIONS, exchange="auto", timeout_s=0.1)
