"""Density 1: training must equal DistributedDataParallel without a hook, with all options."""

import contextlib
from functools import partial

import torch
import torch.distributed as dist
from _common import SPARSE_ONLY, ULP, Cases, caught
from _ddp_cases import SMALL_BUCKETS, are_alike, loss_of, network
from _tensors import digest_of, flat_parameters
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from hvd_sparse.ddp import register

STEPS = 5
TOLERANCE_ULPS = 16


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def zero_redundancy(parameters):
    return ZeroRedundancyOptimizer(parameters, optimizer_class=torch.optim.SGD, lr=0.1)


def train(model, optimizer, *, dtype=torch.float32, passes=1, scaler=None, syncs_always=False):
    for step in range(STEPS):
        optimizer.zero_grad()
        for number in range(passes):
            syncs = syncs_always or number == passes - 1
            with contextlib.nullcontext() if syncs else model.no_sync():
                loss = loss_of(model, passes * step + number, dtype)
                (loss if scaler is None else scaler.scale(loss)).backward()
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()


def compare(name, run):
    """Check that replicas stay identical. Return how far the results of training with and without
    the hook differ, also relative to how far training moves the weights, and the stats.

    run : function that trains a model and returns it; it gets a function that adds the hook
    """
    ends, starts, stats = [], [], {}
    for hooked in (False, True):
        handles = []

        def hook(model, **options):
            starts.append(flat_parameters(model))
            if hooked:  # noqa: B023
                handles.append(register(model, "topk", density=1.0, name=name, **options))  # noqa: B023

        ends.append(flat_parameters(run(hook)))
        for handle in handles:
            stats = handle.stats()
            handle.close()
    assert are_alike(digest_of([ends[1]]))
    apart = float((ends[0] - ends[1]).abs().max())
    return apart, apart / float((ends[0] - starts[0]).abs().max()), stats


def beside_dense(
    name,
    *,
    dtype=torch.float32,
    make=sgd,
    passes=1,
    scaled=False,
    sparse=True,
    syncs_always=False,
    **ddp,
):
    def run(hook):
        model = DistributedDataParallel(network(dtype), **ddp)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if scaled else None
        hook(model, grad_scaler=scaler, **(SPARSE_ONLY if sparse else {"min_numel": 64}))
        how = {"passes": passes, "scaler": scaler, "syncs_always": syncs_always}
        train(model, make(model.parameters()), dtype=dtype, **how)
        return model

    _, difference, stats = compare(name, run)
    assert difference <= TOLERANCE_ULPS * ULP[str(dtype).removeprefix("torch.")], difference
    assert (stats["sparse_steps"] > 0, stats["dense_steps"] > 0) == (sparse, not sparse), stats


DENSITY_ONE = {
    "plain": {},
    "small_buckets": SMALL_BUCKETS,
    "bucket_view": {"gradient_as_bucket_view": True, **SMALL_BUCKETS},
    "accumulated": {"passes": 3, **SMALL_BUCKETS},
    "synchronized_at_every_pass": {"passes": 2, "syncs_always": True, **SMALL_BUCKETS},
    "loss_scale": {"scaled": True},
    "zero_redundancy": {"make": zero_redundancy},
    "float64": {"dtype": torch.float64},
    "float16": {"dtype": torch.float16},
    "bfloat16": {"dtype": torch.bfloat16},
    "goes_dense": {"sparse": False},
}
cases = Cases(
    {
        f"density_one_{name}": partial(beside_dense, **options)
        for name, options in DENSITY_ONE.items()
    }
)


MOMENTUM = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05}
UNMASKED = {"memory": {"id": "momentum_correction", "masking": False}, **SPARSE_ONLY}


def with_momentum(name, make_model, passes=1, **ddp):
    def run(hook):
        model = DistributedDataParallel(make_model(), **ddp, **SMALL_BUCKETS)
        optimizer = torch.optim.SGD(model.parameters(), **MOMENTUM)
        hook(model, optimizer=optimizer, **UNMASKED)
        train(model, optimizer, passes=passes)
        return model

    apart, *_ = compare(name, run)
    assert apart <= TOLERANCE_ULPS * ULP["float32"], apart


@cases
def results_are_not_taken_for_gradients(name):
    """By a memory that makes velocities of gradients: the second pass is refused on all ranks."""
    errors = []
    model = DistributedDataParallel(network(), **SMALL_BUCKETS)
    optimizer = torch.optim.SGD(model.parameters(), **MOMENTUM)
    handle = register(model, "topk", density=1.0, name=name, optimizer=optimizer, **UNMASKED)
    for keepers in (dist.get_world_size(), 1):
        optimizer.zero_grad()
        loss_of(model, 90).backward()
        optimizer.step()  # what was not applied would be taken back, on some ranks alone
        if dist.get_rank() >= keepers:
            optimizer.zero_grad(set_to_none=False)
        errors.append(caught(lambda: loss_of(model, 91).backward()))
    handle.close()
    with_momentum(name, network, passes=2)
    for words in errors:
        assert words.startswith("InvalidOption: tensor '") and "no_sync()" in words, words


class Branching(nn.Module):
    """Three layers. In some steps, the second is multiplied by zero and the third is unused."""

    def __init__(self, *, is_static):
        super().__init__()
        torch.manual_seed(6)
        self.always, self.times, self.seldom = (nn.Linear(12, 12) for _ in range(3))
        self.is_static, self.step = is_static, 0

    def forward(self, inputs):
        self.step += 1
        outputs = self.always(inputs) + self.times(inputs) * float(self.step % 3 == 1)
        if self.is_static or self.step % 2:
            outputs = outputs + self.seldom(inputs)
        return outputs[:, :4]


for mode in ("find_unused_parameters", "static_graph"):
    branching = partial(Branching, is_static=mode == "static_graph")
    cases[f"unusual_zeros_in_{mode}"] = partial(with_momentum, make_model=branching, **{mode: True})


class Convolving(nn.Module):
    """A model whose parameters have another memory layout than their shapes suggest."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.convolve = nn.Conv2d(1, 8, 2, bias=False).to(memory_format=torch.channels_last)
        self.convolve_again = nn.Conv2d(8, 6, 2).to(memory_format=torch.channels_last)
        self.narrow = nn.Parameter(torch.randn(12, 4).t())

    def forward(self, inputs):
        images = self.convolve_again(self.convolve(inputs.view(-1, 1, 3, 4)).tanh())
        return nn.functional.linear(images.flatten(1), self.narrow)


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.narrow, self.wide = network(), nn.Linear(4, 4).double()

    def forward(self, inputs):
        return self.wide(self.narrow(inputs).double()).float()


cases["unusual_layouts_of_parameters"] = partial(with_momentum, make_model=Convolving)
cases["unusual_mixture_of_dtypes"] = partial(with_momentum, make_model=Mixed)
