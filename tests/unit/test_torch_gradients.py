"""Gradients that a program changes while Horovod has them, the last one's wait, and none at all."""

import itertools
import time
from types import SimpleNamespace
from unittest import mock

import pytest

pytest.importorskip("horovod.torch", reason="the package imports it", exc_type=ImportError)
import torch
from programs import run_python
from torch import nn

from hvd_sparse.errors import InvalidOption
from hvd_sparse.torch import Compression, local_steps, wire
from hvd_sparse.torch.compressor import TorchCompressor
from hvd_sparse.torch.gradients import Changes, check_named
from hvd_sparse.torch.wire import MOST_SKIPPED, LastGradientWait

ONE_STEP = object()


def unscale(parameter):
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(1))
    scaler.unscale_(torch.optim.SGD([parameter], lr=0.1))


CHANGES = {
    "clip_grad_norm_": lambda p: nn.utils.clip_grad_norm_([p], 0.1),
    "clip_grad_norm_ that clips nothing": lambda p: nn.utils.clip_grad_norm_([p], 1e6),
    "GradScaler.unscale_": unscale,
    "a write by NumPy": lambda p: p.grad.numpy().fill(0.5),
    "one entry": lambda p: p.grad.view(-1)[7].zero_(),
    "another gradient": lambda p: setattr(p, "grad", p.grad * 0.5),
    "other data": lambda p: setattr(p.grad, "data", p.grad.data.clone()),
}


def trained(shape=(30, 20), **options):
    parameter = nn.Parameter(torch.ones(shape, **options))
    parameter.exp().sum().backward()
    return parameter


def not_contiguous():
    image = nn.Parameter(torch.ones(4, 3, 5, 5).to(memory_format=torch.channels_last))
    image.exp().sum().backward()
    assert not image.grad.is_contiguous()
    return image


def given(**parameters):
    changes = Changes(list(parameters.items()))
    for position in range(len(parameters)):
        changes.give(position, ONE_STEP)
    return changes


@pytest.mark.parametrize("change", CHANGES)
def test_changes_are_found_and_named(change):
    parameters = {key: trained() for key in ("first", "second")}
    changes = given(**parameters)
    CHANGES[change](parameters["second"])
    assert changes.take() == (["second"], ONE_STEP)
    assert changes.take() == ([], None), "what was found is forgotten"


KINDS = {
    "bfloat16": lambda: trained(dtype=torch.bfloat16),
    "float64": lambda: trained(dtype=torch.float64),
    "a scalar": lambda: trained(()),
    "without entries": lambda: trained((0, 3)),
    "not contiguous": not_contiguous,
}


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_all_kinds_are_left_in_peace_and_watched(kind):
    parameter = KINDS[kind]()
    assert given(it=parameter).take() == ([], ONE_STEP)
    changes = given(it=parameter)
    # where there are entries, without a new version
    (parameter.grad.data if parameter.grad.numel() else parameter.grad).mul_(0.5)
    assert changes.take()[0] == ["it"]


def test_sparse_gradients_are_watched():
    table = nn.Embedding(5, 3, sparse=True)
    table(torch.tensor([1, 2])).sum().backward()
    assert given(table=table.weight).take()[0] == []
    changes = given(table=table.weight)
    table.weight.grad._values().data.mul_(0.5)
    assert changes.take()[0] == ["table"]


def concatenated():
    parts = [nn.Parameter(torch.ones(6, 4)) for _ in range(2)]
    torch.cat(parts).exp().sum().backward()
    return parts


def in_one_buffer():
    parts, buffer = [nn.Parameter(torch.ones(6, 4)) for _ in range(2)], torch.ones(48)
    for part, memory in zip(parts, buffer.split(24)):
        part.grad = memory.view(6, 4)
    return parts


@pytest.mark.parametrize("make", [concatenated, in_one_buffer])
def test_a_gradient_that_comes_later_is_no_change_of_one_that_shares_its_version(make):
    first, second = make()
    changes = Changes([("first", first), ("second", second)])
    for _ in range(2):
        version = first.grad._version
        changes.give(0, ONE_STEP)
        second.grad.add_(1.0)
        changes.give(1, ONE_STEP)
        assert first.grad._version > version, "they do not share it: the test shows nothing"
        assert changes.take()[0] == []
        # memory of its own, as after a dense step; the version is shared for ever
        first.grad.set_(torch.ones(6, 4))
    changes.give(0, ONE_STEP)
    first.grad.mul_(0.5)
    assert changes.take()[0] == ["first"], "what is written there is a change all the same"


def test_what_is_left_of_a_step_that_was_given_up_is_not_looked_at():
    first, second = trained(), trained()
    changes = given(first=first, second=second)
    first.grad.zero_()
    second.grad.zero_()
    changes.give(0, object())
    assert changes.take()[0] == []


def test_a_gradient_that_was_let_go_is_not_overwritten():
    parameter = trained()
    changes = given(it=parameter)
    parameter.grad = None
    assert changes.take()[0] == []


def test_a_rest_ends_when_the_others_have_come(monkeypatch):
    monkeypatch.setattr(wire, "LONGEST_S", 600.0)
    answers = iter([False, False, True])
    # the gradients took long to come
    LastGradientWait().take(lambda: next(answers), time.monotonic() - 600.0)
    assert next(answers, None) is None


def test_rests_in_vain_become_rare_until_one_is_not_in_vain():
    wait, rests = LastGradientWait(), []
    for step in range(210):

        def is_done(step=step):
            rests.append(step)
            return step > 190

        wait.take(is_done, time.monotonic())
    rests = sorted(set(rests))
    skipped = [after - before - 1 for before, after in itertools.pairwise(rests)]
    assert skipped[:8] == [1, 2, 4, 8, 16, 32, 64, 64] and not any(skipped[8:])
    assert MOST_SKIPPED == 64


@pytest.mark.parametrize("params", [None, 3])
def test_what_holds_no_parameters_is_refused(params):
    with pytest.raises(InvalidOption, match=r"are (None|3): give model.named_parameters\(\)"):
        check_named(params)


def test_nothing_sends_one_number_and_brings_each_gradient_back_as_it_is(caplog):
    compression = Compression.nothing()
    assert "every rank trains alone" in caplog.text
    gradient = torch.randn(30, 40, dtype=torch.float64)
    sent, context = compression.compress(gradient)
    assert sent.numel() == 1
    assert compression.decompress(sent * 2, context) is gradient
    gathered = torch.eye(3).to_sparse()  # which Horovod gathers itself
    assert compression.decompress(gathered, None) is gathered
    with pytest.raises(InvalidOption, match=r"Compression\.nothing\(params"):
        Compression.nothing.compress(gradient)


ON_ONE_RANK = """
import gc, os, weakref
import horovod.torch as hvd
import torch
from hvd_sparse.torch import Compression
hvd.init()

# A step leaves nothing to the collector of cycles. This comes first, because the threads of a
# dropped compressor end later, and leave cycles.
layers = torch.nn.Sequential(*(torch.nn.Linear(40, 30, bias=False) for _ in range(3)))
compression = Compression.topk(layers.named_parameters(), density=0.1, name="cycles")

def step():
    sent = []
    for name, parameter in layers.named_parameters():
        parameter.grad = torch.rand(parameter.shape)
        sent.append((name, *compression.compress(parameter.grad)))
    for name, wire, ticket in sent:
        compression.decompress(hvd.allreduce(wire, name=name), ticket)

step()
gc.collect()
gc.disable()
for _ in range(3):
    step()
assert gc.collect() == 0

# A ticket lets the gradient go with the result.
layer = torch.nn.Linear(40, 30)
compression = Compression.topk(layer.named_parameters(), density=0.1)
for name, parameter in layer.named_parameters():
    parameter.grad = torch.ones_like(parameter)
    wire, ticket = compression.compress(parameter.grad)
    assert ticket.has_carrier is (name == "weight") and ticket.extra is not None
    compression.decompress(hvd.allreduce(wire, name=name), ticket)
    assert ticket.extra is None, name

# A run on one rank that clips lets its parameters go.
def trained():
    layer = torch.nn.Linear(40, 30)
    optimizer, named = torch.optim.SGD(layer.parameters(), 0.1), list(layer.named_parameters())
    compression = Compression.topk(named, density=0.1, optimizer=optimizer, clip_grad_norm=1.0)
    optimizer = hvd.DistributedOptimizer(optimizer, named, compression=compression)
    layer(torch.ones(1, 40)).sum().backward()
    optimizer.step()
    return weakref.ref(layer.weight)

first = trained()
gc.collect()
trained()
assert first() is None

# A result that is thrown away leaves no trace in an elastic restart.
os.environ["HOROVOD_ELASTIC"] = "1"
layer = torch.nn.Linear(40, 30)
optimizer, named = torch.optim.SGD(layer.parameters(), 0.1), list(layer.named_parameters())
compression = Compression.topk(named, density=0.1)
optimizer = hvd.DistributedOptimizer(optimizer, named, compression=compression)
layer(torch.ones(1, 40)).sum().backward()
optimizer.synchronize()
optimizer.zero_grad()
compression.rejoin()
(state,) = compression.state_dict()["tensors"].values()
assert state["steps"] == 0 and not state["arrays"]["residual"].any()
"""


def test_on_one_rank_of_horovod():
    done = run_python("-c", ON_ONE_RANK)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_local_steps_begin_from_one_ranks_parameters_in_any_memory_layout(dtype, monkeypatch):
    def broadcast(tensor, root, name, process_set):
        assert tensor.is_contiguous() and tensor.dtype != torch.bfloat16  # Horovod refuses others
        tensor.mul_(2).add_(root)

    monkeypatch.setattr(local_steps, "hvd", SimpleNamespace(broadcast_=broadcast))
    values = torch.arange(24.0, dtype=dtype).view(1, 2, 3, 4)
    values = values.contiguous(memory_format=torch.channels_last)
    expected = 2 * values + 1
    local_steps._broadcast(values, "x", SimpleNamespace(ranks=[3, 1]))
    assert torch.equal(values, expected) and not values.is_contiguous()


@pytest.mark.parametrize("make", [None, torch.optim.RMSprop], ids=["no optimizer", "RMSprop"])
def test_clipping_all_gradients_without_a_memorys_optimizer_is_refused_on_one_rank_too(make):
    layer = nn.Linear(8, 8)
    optimizer = None if make is None else make(layer.parameters())
    with pytest.raises(InvalidOption, match=r"clip_grad_norm is 0.5 without optimizer= \(SGD"):
        Compression.topk(
            layer.named_parameters(), density=0.1, clip_grad_norm=0.5, optimizer=optimizer
        )


def test_before_auto_chooses_a_way_a_result_that_was_thrown_away_is_undone():
    """Otherwise ``auto`` takes the residuals that the result contained for sent."""
    compressor, calls = TorchCompressor.__new__(TorchCompressor), mock.Mock()
    calls.policy.begin.return_value, calls.results.waiting = "dense", {}
    calls.results.applied = {}
    vars(compressor).update(
        {"_is_led": True, "_is_elastic": False, "has_begun": True, "_dtypes": [torch.float32]},
        _lock=mock.MagicMock(),
        _index=SimpleNamespace(find=lambda gradient: 0),
        step=SimpleNamespace(specs=[SimpleNamespace(key="weight")]),
        watchdog=mock.Mock(),
        results=calls.results,
        _policy=calls.policy,
        _pass_on=calls.passed_on,
    )
    compressor.compress(torch.ones(3))
    made = [name for name, *_ in calls.mock_calls]
    assert made == ["results.settle", "policy.begin", "passed_on"]
