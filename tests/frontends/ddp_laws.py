"""Worker, under torchrun: DistributedDataParallel with the hook, without Horovod. The bits are
those of the numpy engine, no entry is lost, and a failed step changes nothing. At density 1,
training equals DistributedDataParallel without a hook, with all options."""

import contextlib
import os
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path

import _method_cases as core
import numpy as np
import torch
import torch.distributed as dist
from _common import SPARSE_ONLY, ULP, Cases, caught, run_cases
from _tensors import digest_of, flat_parameters
from harness import report, slow
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from hvd_sparse.ddp import register

cases = Cases()
OF_METHODS = [*core.METHODS, *core.BUILT]
WIDE = {f"t{i}": shape for i, shape in enumerate([(40, 30), (16, 40), (300,), (50, 7), (8, 64)])}
"""Shapes for several buckets of about 500 entries, which DDP rebuilds after its first pass."""
SMALL_BUCKETS = {"bucket_cap_mb": 0.002}
"""Option for small buckets. In the first pass, DDP has one bucket with all parameters; later
buckets have a few hundred entries each."""


class Chosen(nn.Module):
    """A model of zeros, whose gradients are exactly those in its input.

    transposed : the entries of a parameter are in memory in the order of its transpose
    """

    def __init__(self, shapes, transposed=False):
        super().__init__()
        for name, shape in shapes.items():
            zeros = torch.zeros(shape)
            if transposed:
                zeros = zeros.mT.contiguous().mT if zeros.dim() > 1 else zeros
            self.register_parameter(name, nn.Parameter(zeros))

    def forward(self, gradients):
        named = dict(self.named_parameters())
        return sum((named[key] * torch.from_numpy(g)).sum() for key, g in gradients.items())


def chosen(shapes, transposed=False, **options):
    return DistributedDataParallel(Chosen(shapes, transposed), **options)


def network(dtype=torch.float32):
    torch.manual_seed(5)
    layers = (nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 4))
    return nn.Sequential(*layers).to(dtype)


def loss_of(model, step, dtype=torch.float32):
    draw = torch.Generator().manual_seed(100 * step + dist.get_rank())
    inputs = torch.randn(16, 12, generator=draw).to(dtype)
    return nn.functional.mse_loss(model(inputs), inputs[:, :4].roll(1, dims=1))


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def zero_redundancy(parameters):
    return ZeroRedundancyOptimizer(parameters, optimizer_class=torch.optim.SGD, lr=0.1)


def are_alike(value):
    told = [None] * dist.get_world_size()
    dist.all_gather_object(told, value)
    return all(each == value for each in told)


def summed(array):
    total = torch.from_numpy(np.asarray(array, np.float64).copy())
    dist.all_reduce(total)
    return total.numpy()


class Registering:
    def __getattr__(self, method):
        return lambda model, **options: register(model, method, **options)


def same_as_the_core(name):
    shapes = {f"t{i}": shape for i, shape in enumerate(core.SHAPES)}
    # The core keeps the first pass's bucket, of which one selection would be another.
    model = chosen(shapes, **({} if name in core.OVER_GROUPS else SMALL_BUCKETS))
    handle = core.compressor_of(Registering(), name, model, name=name, **SPARSE_ONLY)
    still = torch.optim.SGD(model.parameters(), lr=0.0)
    buckets, applied = handle.step.buckets, []
    for step in range(core.STEPS):
        drawn = core.gradients_of(dist.get_rank(), step)
        model.zero_grad()
        model({key: g.astype(np.float32) for key, g in zip(shapes, drawn)}).backward()
        named = dict(model.module.named_parameters())
        applied += [named[key].grad.numpy().copy() for key in shapes]
        still.step()
    world = {"rank": dist.get_rank(), "size": dist.get_world_size(), "buckets": buckets}
    expected = core.simulated(
        handle, core.gradients_of, steps=range(core.STEPS), average=True, **world
    )
    core.check_method(handle, digest_of(applied), expected)


cases |= dict.fromkeys(OF_METHODS, same_as_the_core)


def drawn_for(rank, step):
    """Return multiples of 1/8, whose sums are exact. Two tensors sometimes have no gradient."""
    draw = np.random.RandomState(1000 * step + rank)
    gradients = {key: np.round(8 * draw.laplace(size=shape)) / 8 for key, shape in WIDE.items()}
    if step % 4 == 1:
        del gradients["t3"]
    if step % 3 == 2 and rank == 0:
        del gradients["t1"]
    return {key: gradient.astype(np.float32) for key, gradient in gradients.items()}


def conserve(name, method, ddp=None, density=0.05, transposed=False, **options):
    """Check that nothing is lost where buckets change and parameters are unused."""
    model = chosen(WIDE, transposed=transposed, **SMALL_BUCKETS, **(ddp or {}))
    handle = register(model, method, density=density, name=name, **SPARSE_ONLY, **options)
    totals = {key: np.zeros(shape) for key, shape in WIDE.items()}
    lost, plans, idle, size = [], set(), 0, dist.get_world_size()
    for step in range(12):
        gradients = drawn_for(dist.get_rank(), step)
        if not ddp:  # every tensor has a gradient
            gradients = {key: gradients.get(key, np.zeros(WIDE[key], np.float32)) for key in WIDE}
        for key, gradient in gradients.items():
            totals[key] += gradient
        model.zero_grad()
        model(gradients).backward()
        plans.add(tuple(handle.step.buckets))
        for key, parameter in model.module.named_parameters():
            if parameter.grad is None:
                idle += 1
            elif dist.get_rank() == 0:
                # An average over three ranks is rounded, the sums are eighths.
                totals[key] -= np.round(8 * size * parameter.grad.double().numpy()) / 8
        tensors, missing = handle.state_dict()["tensors"], 0
        for key, total in totals.items():
            owed = total.copy()
            if key in tensors:
                owed -= tensors[key]["arrays"]["residual"].numpy().reshape(owed.shape)
            missing += int(np.count_nonzero(summed(owed)))
        lost.append(missing)
    stats, buckets = handle.stats(), handle.step.buckets
    asked = {key: figures["density_asked"] for key, figures in stats["tensors"].items()}
    together = [[handle.step.specs[i].key for i in members] for members in buckets]
    handle.close()
    assert lost == [0] * 12, lost
    # DDP builds its buckets anew, unless it looks for unused parameters.
    assert (len(plans), idle > 0) == ((1, True) if ddp else (2, False)), (plans, idle)
    return asked, stats, together


@cases
def all_ranks_send_what_hides_behind_later_buckets(name):
    asked, stats, together = conserve(name, "topk", density="hiding:50")
    assert are_alike([asked, together])
    assert stats["hiding"] == {"c_max": 50, "is_measured": True}
    assert sorted(asked) == sorted(key for keys in together for key in keys)
    assert all(0.02 <= density <= 1 for density in asked.values()), asked
    for keys in together:
        assert len({asked[key] for key in keys}) == 1


UNUSED = {"find_unused_parameters": True}
cases |= {
    "conservation_of_transposed_parameters": partial(conserve, method="ldte_bs", transposed=True),
    "conservation_without_rollback": partial(conserve, method="topk", ddp=UNUSED, rollback=False),
    "conservation_of_unused_parameters": partial(conserve, method="ldte_bs", ddp=UNUSED),
    "conservation_of_unused_parameters_by_oktopk": partial(
        conserve, method="oktopk", ddp=UNUSED, period=2
    ),
}


def spoiled(name, nans, words, make=sgd, **options):
    """With NaN on one rank, ``nans`` entries of the gradients are NaN, or an error says ``words``;
    the step leaves no trace, also if it is applied."""
    ends = []
    for bad in (3, None):
        model = chosen(WIDE, **SMALL_BUCKETS)
        handle = register(model, "topk", density=0.05, name=name, **SPARSE_ONLY, **options)
        optimizer = make(model.parameters())
        for step in range(6):
            if step == 3 and bad is None:
                continue
            gradients = full_gradients(step)
            if step == bad and dist.get_rank() == 0:
                gradients["t2"][5] = np.nan
            model.zero_grad()
            error = caught(lambda: model(gradients).backward())  # noqa: B023
            if step == bad:
                found = int(sum(p.grad.isnan().sum() for p in model.parameters())), error
            optimizer.step()
        arrays = [t["arrays"]["residual"] for t in handle.state_dict()["tensors"].values()]
        ends.append(digest_of([*arrays, *(p.grad for p in model.parameters())]))
        handle.close()
    assert found[0] == nans and words in found[1], found
    assert ends[0] == ends[1]


propagates = partial(spoiled, nans=300, words="nothing was raised")
cases["nan_propagates"] = propagates
cases["nan_propagates_to_all_shards"] = partial(propagates, make=zero_redundancy)
raises = {"nans": 0, "words": "'t2': 1 of 300 entries", "on_nonfinite": "raise"}
cases["nan_is_raised"] = partial(spoiled, **raises)


def full_gradients(step, rank=None):
    drawn = drawn_for(dist.get_rank() if rank is None else rank, step)
    return {key: drawn.get(key, np.ones(WIDE[key], np.float32)) for key in WIDE}


def trainee(name):
    model = DistributedDataParallel(network(), **SMALL_BUCKETS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    # Dense sums of three ranks are rounded as DDP's buckets lie, which are others at first.
    options = {"density": 0.05, "name": name, "optimizer": optimizer, **SPARSE_ONLY}
    return [model, optimizer, register(model, "ldte_bs", **options)]


@cases
def a_checkpoint_goes_on_as_if_nothing_had_been(name):
    digests, folder = [], [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder)
    for stops in (None, "states", "file"):
        model, optimizer, handle = trainee(name)
        for step in range(8):
            if stops and step == 4:
                own, parts = f"{folder[0]}/{dist.get_rank()}", (model.module, optimizer, handle)
                torch.save([part.state_dict() for part in parts], own)
                handle.save(Path(folder[0]) / "residuals")
                handle.close()
                saved = torch.load(own, weights_only=True)
                model, optimizer, handle = trainee(name)
                parts = (model.module, optimizer, handle)
                for part, state in zip(parts if stops == "states" else parts[:2], saved):
                    part.load_state_dict(state)
                if stops == "file":
                    handle.load(Path(folder[0]) / "residuals")
            optimizer.zero_grad()
            loss_of(model, step).backward()
            optimizer.step()
        handle.close()
        digests.append(digest_of(model.parameters()))
    dist.barrier()
    shutil.rmtree(folder[0], ignore_errors=True)
    assert are_alike(digests)
    assert len(set(digests)) == 1, digests


@cases
def the_norm_of_all_gradients_is_clipped_alike_on_all_ranks(name):
    model = chosen(WIDE, **SMALL_BUCKETS)
    handle = register(model, "topk", density=1.0, clip_grad_norm=2.0, name=name, **SPARSE_ONLY)
    errors, norms = [], []
    for rank in (0, dist.get_rank()):
        gradients = full_gradients(0, rank)
        own = np.concatenate([gradients[key].ravel() for key in WIDE]).astype(np.float64)
        average = summed(own) / dist.get_world_size()
        square = float(summed(np.array([own @ own]))[0]) / dist.get_world_size()
        model.zero_grad()
        model(gradients).backward()
        named = dict(model.module.named_parameters())
        applied = np.concatenate([named[key].grad.double().numpy().ravel() for key in WIDE])
        expected = average * (2.0 / np.sqrt(square))
        errors.append(np.abs(applied - expected).max() / np.abs(expected).max())
        norms.append(float(np.linalg.norm(applied)))
    handle.close()
    assert are_alike([norms, *map(float, errors)])
    assert max(errors) < 1e-5, errors
    assert abs(norms[0] / 2.0 - 1) < 1e-5, norms
    # The ranks' root mean square is above the norm of their average.
    assert 2.0 / dist.get_world_size() < norms[1] < 2.0, norms


@cases
def uneven_inputs(name):
    """Join lets ranks have different numbers of batches."""
    model = chosen(WIDE, **SMALL_BUCKETS)
    handle = register(model, "topk", density=0.05, name=name, **SPARSE_ONLY)
    steps = 3 + 2 * (dist.get_rank() == 0)
    with model.join():
        for step in range(steps):
            model(full_gradients(step)).backward()
    assert handle.stats()["steps"] == 5
    handle.close()


@cases
def the_ranks_are_those_of_ddps_process_group(name):
    group = dist.new_group([0, 1])
    if dist.get_rank() > 1:
        return
    model = chosen(WIDE, process_group=group)
    handle = register(model, "topk", density=1.0, name=name, **SPARSE_ONLY)
    mine, other = (drawn_for(rank, 0) for rank in (0, 1))
    gradients = (mine, other)[dist.get_rank()]
    model({key: gradients.get(key, np.zeros(WIDE[key], np.float32)) for key in WIDE}).backward()
    expected = (mine["t0"] + other["t0"]) / 2
    handle.close()
    assert (model.module.t0.grad.numpy() == expected).all()


@cases
def other_options_on_one_rank_are_refused_by_name(name):
    density = 0.1 if dist.get_rank() == 0 else 0.2
    said = caught(lambda: register(chosen(WIDE), "topk", density=density, name=name))
    exchange = "hierarchical" if dist.get_rank() == 0 else "allgather"
    options = {"density": 0.1, "exchange": exchange, "name": name}
    again = caught(lambda: register(chosen(WIDE), "topk", **options))
    assert said.startswith("RankMismatch") and '"density": 0.2' in said, said
    assert again.startswith("RankMismatch"), again


# -- density 1 ------------------------------------------------------------------------------------

TOLERANCE_ULPS = 16
UNMASKED = {"memory": {"id": "momentum_correction", "masking": False}}


def sgd_with_momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.05)


def train(model, optimizer, *, scaler=None, dtype=torch.float32, passes=1, syncs_always=False):
    for step in range(5):
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


def beside_dense(name, *, make_model=network, make=sgd, scaled=False, sparse=True, ddp=None, **how):
    """Train with and without the hook, and check that this makes no difference, and that replicas
    stay identical. An optimizer with momentum is handed over."""
    ends, dtype = [], how.get("dtype", torch.float32)
    hands_over = make is sgd_with_momentum
    for is_hooked in (False, True):
        model = DistributedDataParallel(make_model(), **(ddp or {}))
        start, optimizer = flat_parameters(model), make(model.parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if scaled else None
        if is_hooked:
            options = SPARSE_ONLY if sparse else {"min_numel": 64}
            if hands_over:
                options = {**options, **UNMASKED, "optimizer": optimizer}
            options = {"density": 1.0, "name": name, "grad_scaler": scaler, **options}
            handle = register(model, "topk", **options)
        train(model, optimizer, scaler=scaler, **how)
        ends.append(flat_parameters(model))
    stats = handle.stats()
    handle.close()
    apart, moved = (float((ends[0] - each).abs().max()) for each in (ends[1], start))
    tolerance = TOLERANCE_ULPS * ULP[str(dtype).removeprefix("torch.")]
    assert are_alike(digest_of([ends[1]]))
    assert apart <= tolerance * (1.0 if hands_over else moved), (apart, moved)
    assert (stats["sparse_steps"] > 0, stats["dense_steps"] > 0) == (sparse, not sparse), stats


DENSITY_ONE = {
    "plain": {},
    "small_buckets": {"ddp": SMALL_BUCKETS},
    "bucket_view": {"ddp": {"gradient_as_bucket_view": True, **SMALL_BUCKETS}},
    "accumulated": {"passes": 3, "ddp": SMALL_BUCKETS},
    "synchronized_at_every_pass": {"passes": 2, "syncs_always": True, "ddp": SMALL_BUCKETS},
    "loss_scale": {"scaled": True},
    "zero_redundancy": {"make": zero_redundancy},
    "goes_dense": {"sparse": False},
}
for dtype in (torch.float64, torch.float16, torch.bfloat16):
    DENSITY_ONE[dtype] = {"make_model": partial(network, dtype), "dtype": dtype}
for label, options in DENSITY_ONE.items():
    cases[f"density_one_{label}"] = partial(beside_dense, **options)
with_momentum = partial(beside_dense, make=sgd_with_momentum)


@cases
def results_are_not_taken_for_gradients(name):
    """By a memory that makes velocities of gradients: the second pass is refused on all ranks."""
    errors = []
    model = DistributedDataParallel(network(), **SMALL_BUCKETS)
    optimizer = sgd_with_momentum(model.parameters())
    options = {"optimizer": optimizer, **UNMASKED, **SPARSE_ONLY}
    handle = register(model, "topk", density=1.0, name=name, **options)
    for keepers in (dist.get_world_size(), 1):
        optimizer.zero_grad()
        loss_of(model, 90).backward()
        optimizer.step()  # what was not applied would be taken back, on some ranks alone
        if dist.get_rank() >= keepers:
            optimizer.zero_grad(set_to_none=False)
        errors.append(caught(lambda: loss_of(model, 91).backward()))
    handle.close()
    with_momentum(name, passes=2, ddp=SMALL_BUCKETS)
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
    options = {mode: True, **SMALL_BUCKETS}
    cases[f"unusual_zeros_in_{mode}"] = partial(with_momentum, make_model=branching, ddp=options)


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


for label, unusual in {"layouts_of_parameters": Convolving, "mixture_of_dtypes": Mixed}.items():
    made = partial(with_momentum, make_model=unusual, ddp=SMALL_BUCKETS)
    cases[f"unusual_{label}"] = made


def absent_rank(results):
    """Rank 1 runs no backward pass, and the others' error must name it. No case can follow."""
    model = chosen(WIDE)
    register(model, "topk", density=0.1, name="absent_rank", timeout_s=slow(8.0))
    if dist.get_rank() != 1:
        gradients = full_gradients(0)
        results["absent_rank"] = {"measured": caught(lambda: model(gradients).backward())}
    else:
        results["absent_rank"] = {"measured": "absent"}
    report(dist.get_rank(), results)


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if dist.get_world_size() > 2:  # the bits of every method are two ranks' affair
        cases = {name: cases[name] for name in cases if name not in OF_METHODS}
    results = run_cases(cases, dist.get_rank(), dist.barrier)
    results["imports"] = {"measured": "horovod" in sys.modules}
    store = dist.distributed_c10d._get_default_store()
    absent_rank(results)
    store.add("ends", 1)
    if dist.get_rank() == 1:  # stays until the others have asked it
        store.wait(["asked"])
    elif dist.get_rank() == 0:
        store.set("asked", "")
    os._exit(0)  # the group has collectives under way that nobody will join
