"""What ``hvd_sparse.ddp`` refuses, in one process: by name, with the remedy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("torch")
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from hvd_sparse.ddp import DdpCompressor, register
from hvd_sparse.errors import (
    InvalidOption,
    SparseError,
    UnknownName,
    UnsupportedInput,
)

pytestmark = pytest.mark.usefixtures("world_of_one")


def model_of(*layers: nn.Module) -> DistributedDataParallel:
    torch.manual_seed(0)
    return DistributedDataParallel(nn.Sequential(*(layers or (nn.Linear(8, 6), nn.Linear(6, 2)))))


@pytest.fixture
def model() -> DistributedDataParallel:
    return model_of()


@pytest.fixture
def handle(model: DistributedDataParallel) -> Iterator[DdpCompressor]:
    made = register(model, "topk", density=0.1, min_numel=1, allow_dense=False)
    yield made
    made.close()


def test_a_bare_model_is_refused() -> None:
    with pytest.raises(InvalidOption, match=r"the model is Linear: wrap it before"):
        register(nn.Linear(2, 2), density=0.1)


def test_a_second_hook_is_refused_by_name() -> None:
    model = model_of()
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    with pytest.raises(InvalidOption, match=r"hook 'fp16_compress_hook', and DDP takes one"):
        register(model, density=0.1)
    model = model_of()
    made = register(model, density=0.1)
    with pytest.raises(InvalidOption, match=r"hook 'sparse_hook', and DDP takes one"):
        register(model, density=0.1)
    with pytest.raises(RuntimeError, match="register_comm_hook"):
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    made.close()
    model = model_of()
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    with pytest.raises(InvalidOption, match="DDP takes no further hook"):
        register(model, density=0.1)


def test_sparse_and_complex_gradients_are_refused_by_name() -> None:
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
        ({"grad_scaler": 3}, "grad_scaler is 3"),
        ({"optimizer": 3}, "optimizer is int"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises((InvalidOption, UnknownName), match=words):
        register(model_of(), density=0.1, **options)


def test_a_ddp_that_passes_buckets_over_is_refused() -> None:
    model = DistributedDataParallel(
        nn.Linear(2, 2), find_unused_parameters=True, skip_all_reduce_unused_params=True
    )
    with pytest.raises(InvalidOption, match="DDP has skip_all_reduce_unused_params: it would"):
        register(model, density=0.1)


def test_a_closed_compressor_refuses_its_model(
    model: DistributedDataParallel, handle: DdpCompressor
) -> None:
    handle.close()
    with pytest.raises(InvalidOption, match=r"closed, but DDP keeps its hook"):
        model(torch.ones(3, 8)).sum().backward()


def test_from_config_makes_an_equal_compressor(handle: DdpCompressor) -> None:
    other = register(model_of(), "from_config", config=handle.config())
    assert other.configuration == handle.configuration
    other.close()


def test_a_world_of_one_keeps_what_it_does_not_apply(
    model: DistributedDataParallel, handle: DdpCompressor
) -> None:
    inputs = torch.randn(5, 8)
    model(inputs).square().mean().backward()
    applied = {name: p.grad.clone() for name, p in model.module.named_parameters()}
    bare = nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 2))
    bare.load_state_dict(model.module.state_dict())
    bare(inputs).square().mean().backward()
    arrays = handle.state_dict()["tensors"]
    for name, parameter in bare.named_parameters():
        kept = arrays[name]["arrays"]["residual"].view_as(parameter) if name in arrays else 0
        assert torch.equal(applied[name] + kept, parameter.grad)
    assert handle.stats()["entries_sent"] == 5


def test_a_failed_step_leaves_ddp_ready_for_the_next() -> None:
    model = model_of()
    made = register(model, "topk", density=0.1, min_numel=1, on_nonfinite="raise")
    with pytest.raises(SparseError, match="NaN or Inf"):
        model(torch.full((2, 8), float("nan"))).sum().backward()
    assert not any(parameter.grad.any() for parameter in model.parameters())
    model.zero_grad()
    model(torch.ones(2, 8)).sum().backward()
    assert made.stats()["steps"] == 1
    made.close()


def test_a_failed_step_leaves_no_loss_scale() -> None:
    model, scales = model_of(), [8.0]
    options = {"density": 0.1, "min_numel": 1, "allow_dense": False, "on_nonfinite": "raise"}
    made = register(model, "topk", grad_scaler=lambda: scales[0], **options)
    with pytest.raises(SparseError, match="NaN or Inf"):
        model(torch.full((2, 8), float("nan"))).sum().backward()
    model.zero_grad()
    scales[0] = 2.0
    (2.0 * model(torch.ones(2, 8)).sum()).backward()
    plain = model_of().module
    plain(torch.ones(2, 8)).sum().backward()
    for key, state in made.state_dict()["tensors"].items():
        kept = state["arrays"]["residual"].view_as(model.module.get_parameter(key))
        applied = model.module.get_parameter(key).grad / 2.0
        assert torch.equal(applied + kept, plain.get_parameter(key).grad)
    made.close()


def test_states_go_between_compiled_and_plain_models() -> None:
    options = {"density": 0.1, "min_numel": 1, "allow_dense": False, "name": "compiled"}
    plain = model_of()
    compiled = DistributedDataParallel(torch.compile(plain.module, backend="eager"))
    states = []
    for model in (plain, compiled):
        handle = register(model, "topk", **options)
        model(torch.ones(3, 8)).square().sum().backward()
        states.append(handle.state_dict())
        handle.close()
    first, second = states
    assert (
        list(first["model"])
        == list(second["model"])
        == [name for name, _ in plain.module.named_parameters()]
    )
    # as the names were before, and still are where a program gives them
    for part in ("model", "tensors"):
        second[part] = {f"_orig_mod.{name}": told for name, told in second[part].items()}
    handle = register(model_of(), "topk", **options)
    assert handle.load_state_dict(second) == ([], [])
    kept = handle.state_dict()["tensors"]["0.weight"]["arrays"]["residual"]
    handle.close()
    assert torch.equal(kept, second["tensors"]["_orig_mod.0.weight"]["arrays"]["residual"])
    assert kept.any()


class Rooted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.layer = nn.Parameter(torch.ones(6)), nn.Linear(8, 6)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layer(inputs) * self.scale


@pytest.mark.parametrize(
    ("ignored", "reduced"),
    [
        (["scale"], ["scale", "layer.weight", "layer.bias"]),  # which DDP reduces all the same
        (["layer.bias"], ["scale", "layer.weight"]),
        ([".scale"], ["layer.weight", "layer.bias"]),
    ],
)
def test_what_ddp_ignores_is_what_the_compressor_leaves_alone(
    ignored: list[str], reduced: list[str]
) -> None:
    bare = Rooted()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(bare, ignored)
    model = DistributedDataParallel(bare)
    handle = register(model, "topk", density=1.0, min_numel=1, compress_1d=True)
    model(torch.ones(3, 8)).sum().backward()
    assert list(handle.state_dict()["model"]) == reduced
    handle.close()


def test_momentum_behind_plain_error_feedback_is_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = model_of()
    made = register(model, "topk", density=0.01, min_numel=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
    assert sum("momentum 0.9" in record.message for record in caplog.records) == 1
    made.close()


def test_an_optimizer_of_other_parameters_is_refused() -> None:
    model, other = model_of(), model_of()
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
    with pytest.raises(InvalidOption, match=r"'0.weight' is in none of the optimizer's"):
        register(model, "topk", density=0.1, optimizer=optimizer)
    assert type(optimizer) is torch.optim.SGD
