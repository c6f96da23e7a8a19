"""What PyTorch's ``Compression`` refuses before any training, by names and with the way out."""

import copy
import pickle

import horovod.torch as hvd
import pytest
import torch
from torch import nn

from hvd_sparse.errors import InvalidOption, UnsupportedInput
from hvd_sparse.frontend.torch.applying import Applying
from hvd_sparse.torch import Compression


@pytest.fixture(autouse=True)
def two_ranks(monkeypatch):
    """What Horovod answers on two ranks; nothing is sent here."""
    size = {True: 2, False: None}
    monkeypatch.setattr(
        hvd.ProcessSet, "size", lambda process_set: size[process_set.process_set_id is not None]
    )
    monkeypatch.setattr(hvd, "size", lambda: 2)
    monkeypatch.setattr(hvd, "rank", lambda: 0)


def model():
    return nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))


def refused(kind, *words, params=None, **options):
    params = model().named_parameters() if params is None else params
    with pytest.raises(kind) as caught:
        Compression.topk(params, **{"density": 0.1, **options})
    for word in words:
        assert word in str(caught.value)


def test_parameters_without_names_or_shapes_or_floats_are_refused():
    refused(InvalidOption, "named_parameters()", params=model().parameters())
    used_up = model().named_parameters()
    dict(used_up)
    refused(InvalidOption, "named_parameters() again", params=used_up)
    refused(InvalidOption, "'weight' has no shape", params=nn.LazyLinear(3).named_parameters())
    phases = nn.Parameter(torch.zeros(3, dtype=torch.complex64))
    refused(UnsupportedInput, "'phases'", "complex64", "leave it out", params=[("phases", phases)])


def test_tied_weights_have_the_first_of_their_names():
    tied = nn.Linear(4, 4, bias=False)
    named = [(f"{name}.weight", tied.weight) for name in ("encoder", "decoder")]
    compressor = Compression.topk([*named, ("last", nn.Parameter(torch.zeros(3)))], density=0.1)
    assert [spec.key for spec in compressor.step.specs] == ["encoder.weight", "last"]
    compressor.close()


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.bool, torch.complex64])
def test_tensors_that_are_no_floats_and_need_no_gradient_are_left_out(dtype):
    """As the weights of 8 bits below LoRA's; frozen floats stay, as they may be trained later."""
    base = nn.Parameter(torch.zeros(8, 8, dtype=dtype), requires_grad=False)
    frozen = nn.Parameter(torch.zeros(8, 8), requires_grad=False)
    named = [("base", base), ("low", nn.Parameter(torch.zeros(8, 2))), ("frozen", frozen)]
    compressor = Compression.topk(named, density=0.1)
    assert [spec.key for spec in compressor.step.specs] == ["low", "frozen"]
    assert compressor._parameters[0] is named[1][1]
    compressor.close()
    refused(
        InvalidOption,
        "none of the 1 parameters can have a gradient",
        "'base'",
        params=[("base", base)],
    )


def test_horovod_must_have_been_started_and_know_the_process_set(monkeypatch):
    for process_set in ("all", hvd.ProcessSet([0])):
        refused(InvalidOption, "process_set", process_set=process_set)
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"hvd\.init\(\)"):
        Compression.topk(model().named_parameters(), density=0.1)


def test_outside_of_the_process_set_a_loaded_state_leaves_schedulers_their_effect(monkeypatch):
    """As on one rank: Horovod calls no compressor, and the optimizer does its own work."""
    monkeypatch.setattr(hvd.ProcessSet, "included", lambda process_set: False)
    trained = model()
    optimizer = torch.optim.SGD(trained.parameters(), lr=1.0, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    named = list(trained.named_parameters())
    compressor = Compression.topk(named, density=0.1, optimizer=optimizer)
    # As Horovod derives its optimizer.
    derived = type("SGD", (type(optimizer),), {})(optimizer.param_groups, lr=1.0)
    derived.load_state_dict(copy.deepcopy(derived.state_dict()))
    optimizer.step()
    scheduler.step()
    compressor.close()
    assert derived.param_groups[0]["lr"] == 0.5
    assert type(pickle.loads(pickle.dumps(optimizer))) is torch.optim.SGD


@pytest.mark.parametrize("members", [(True, False), (False, True)])
def test_of_two_process_sets_that_of_this_rank_keeps_the_optimizer_and_its_results_unclipped(
    monkeypatch, members
):
    """Both compressors are made before the Horovod optimizers."""
    named = list(model().named_parameters())
    optimizer = torch.optim.SGD([parameter for _, parameter in named], lr=1.0)
    made = []
    for is_member in members:
        monkeypatch.setattr(hvd.ProcessSet, "included", lambda process_set, is_in=is_member: is_in)
        options = {"optimizer": optimizer, "clip_grad_norm": 0.1}
        made.append(Compression.topk(named, density=0.1, name=str(is_member), **options))
    assert isinstance(optimizer, Applying)
    assert optimizer.hvd_sparse_compressor is made[members.index(True)]
    large = [torch.ones_like(parameter) for _, parameter in named]
    for (_, parameter), gradient in zip(named, large):
        parameter.grad = gradient.clone()
    with pytest.raises(InvalidOption, match="do not come through the compressor"):
        # As Horovod derives its optimizer. torch's hooks run first.
        type("SGD", (type(optimizer),), {})(optimizer.param_groups).step()
    assert all(torch.equal(p.grad, gradient) for (_, p), gradient in zip(named, large))
    for compressor in made:
        compressor.close()
