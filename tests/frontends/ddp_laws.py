"""Worker, under torchrun: DistributedDataParallel with the hook, without Horovod. The bits are
those of the numpy engine, no entry is lost, and a failed step changes nothing."""

import io
import os
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path

import _ddp_density_one
import numpy as np
import torch
import torch.distributed as dist
from _common import SPARSE_ONLY, Cases, caught, run_cases
from _ddp_cases import SMALL_BUCKETS, Chosen, chosen, loss_of, network, summed
from _method_cases import (
    BUILT,
    METHODS,
    OVER_GROUPS,
    SHAPES,
    STEPS,
    compressor_of,
    found,
    gradients_of,
    simulated,
)
from _tensors import digest_of
from harness import report, slow
from torch.nn.parallel import DistributedDataParallel

from hvd_sparse.ddp import register

cases = Cases()
OF_METHODS = [*METHODS, *BUILT]
WIDE = {f"t{i}": shape for i, shape in enumerate([(40, 30), (16, 40), (300,), (50, 7), (8, 64)])}
"""Shapes for several buckets of about 500 entries, which DDP rebuilds after its first pass."""


class Registering:
    def __getattr__(self, method):
        return lambda model, **options: register(model, method, **options)


def same_as_the_core(name):
    shapes = {f"t{i}": shape for i, shape in enumerate(SHAPES)}
    # The core keeps the first pass's bucket, of which one selection would be another.
    model = chosen(shapes, **({} if name in OVER_GROUPS else SMALL_BUCKETS))
    handle = compressor_of(Registering(), name, model, name=name, **SPARSE_ONLY)
    still = torch.optim.SGD(model.parameters(), lr=0.0)
    buckets, applied = handle.step.buckets, []
    for step in range(STEPS):
        drawn = gradients_of(dist.get_rank(), step)
        model.zero_grad()
        model({key: g.astype(np.float32) for key, g in zip(shapes, drawn)}).backward()
        named = dict(model.module.named_parameters())
        applied += [named[key].grad.numpy().copy() for key in shapes]
        still.step()
    world = {"rank": dist.get_rank(), "size": dist.get_world_size(), "buckets": buckets}
    expected = simulated(handle, gradients_of, steps=range(STEPS), average=True, **world)
    return found(handle, digest_of(applied), expected)


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
    measured = {"asked": asked, "hiding": stats.get("hiding"), "together": together}
    return {"lost": lost, "plans": len(plans), "idle": idle, **measured}


UNUSED = {"find_unused_parameters": True}
cases |= {
    "conservation_of_transposed_parameters": partial(conserve, method="ldte_bs", transposed=True),
    "densities_that_hide": partial(conserve, method="topk", density="hiding:50"),
    "conservation_without_rollback": partial(conserve, method="topk", ddp=UNUSED, rollback=False),
    "conservation_of_unused_parameters": partial(conserve, method="ldte_bs", ddp=UNUSED),
    "conservation_of_unused_parameters_by_oktopk": partial(
        conserve, method="oktopk", ddp=UNUSED, period=2
    ),
}


def spoiled(name, **options):
    ends, errors, nans = [], [], []
    for bad in (3, None):
        model = chosen(WIDE, **SMALL_BUCKETS)
        handle = register(model, "topk", density=0.05, name=name, **SPARSE_ONLY, **options)
        still = torch.optim.SGD(model.parameters(), lr=0.0)
        for step in range(6):
            if step == 3 and bad is None:
                continue
            gradients = full_gradients(step)
            if step == bad and dist.get_rank() == 0:
                gradients["t2"][5] = np.nan
            model.zero_grad()
            error = caught(lambda: model(gradients).backward())  # noqa: B023
            if step == bad:
                errors.append(error)
                nans.append(int(sum(p.grad.isnan().sum() for p in model.parameters())))
            else:
                still.step()
        arrays = [t["arrays"]["residual"] for t in handle.state_dict()["tensors"].values()]
        ends.append(digest_of([*arrays, *(p.grad for p in model.parameters())]))
        handle.close()
    return {"ends": ends, "error": errors[0], "nans": nans[0]}


cases["nan_propagates"] = spoiled
cases["nan_is_raised"] = partial(spoiled, on_nonfinite="raise")


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
def resumed(name):
    digests, folder = [], [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder)
    for stops in (None, "states", "file"):
        model, optimizer, handle = trainee(name)
        for step in range(8):
            if stops and step == 4:
                kept = io.BytesIO()
                parts = (model.module, optimizer, handle)
                torch.save([part.state_dict() for part in parts], kept)
                handle.save(Path(folder[0]) / "residuals")
                handle.close()
                kept.seek(0)
                saved = torch.load(kept, weights_only=True)
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
    return {"digests": digests}


@cases
def clipped(name):
    model = chosen(WIDE, **SMALL_BUCKETS)
    handle = register(model, "topk", density=1.0, clip_grad_norm=2.0, name=name, **SPARSE_ONLY)
    found = {}
    for kind, rank in (("same", 0), ("other", dist.get_rank())):
        gradients = full_gradients(0, rank)
        own = np.concatenate([gradients[key].ravel() for key in WIDE]).astype(np.float64)
        average = summed(own) / dist.get_world_size()
        square = float(summed(np.array([own @ own]))[0]) / dist.get_world_size()
        model.zero_grad()
        model(gradients).backward()
        applied = flat_gradients(model)
        expected = average * (2.0 / np.sqrt(square))
        found[f"{kind}_error"] = float(np.abs(applied - expected).max() / np.abs(expected).max())
        found[f"{kind}_norm"] = float(np.linalg.norm(applied))
    handle.close()
    return found


def flat_gradients(model):
    named = dict(model.module.named_parameters())
    return np.concatenate([named[key].grad.double().numpy().ravel() for key in WIDE])


@cases
def uneven_inputs(name):
    model = chosen(WIDE, **SMALL_BUCKETS)
    handle = register(model, "topk", density=0.05, name=name, **SPARSE_ONLY)
    steps = 3 + 2 * (dist.get_rank() == 0)
    with model.join():
        for step in range(steps):
            model(full_gradients(step)).backward()
    found = handle.stats()["steps"]
    handle.close()
    return {"steps": found}


@cases
def groups_of_ranks(name):
    group = dist.new_group([0, 1])
    if dist.get_rank() > 1:
        return {"is_member": False}
    torch.manual_seed(1)
    model = DistributedDataParallel(Chosen(WIDE, torch.float32), process_group=group)
    handle = register(model, "topk", density=1.0, name=name, **SPARSE_ONLY)
    mine, other = (drawn_for(rank, 0) for rank in (0, 1))
    gradients = (mine, other)[dist.get_rank()]
    model({key: gradients.get(key, np.zeros(WIDE[key], np.float32)) for key in WIDE}).backward()
    expected = (mine["t0"] + other["t0"]) / 2
    differences = int((dict(model.module.named_parameters())["t0"].grad.numpy() != expected).sum())
    handle.close()
    return {"is_member": True, "differences": differences}


@cases
def other_options_on_one_rank(name):
    density = 0.1 if dist.get_rank() == 0 else 0.2
    errors = [caught(lambda: register(chosen(WIDE), "topk", density=density, name=name))]
    exchange = "hierarchical" if dist.get_rank() == 0 else "allgather"
    errors.append(
        caught(lambda: register(chosen(WIDE), "topk", density=0.1, exchange=exchange, name=name))
    )
    return {"errors": errors}


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
    cases |= _ddp_density_one.cases
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
