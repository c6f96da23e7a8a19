"""Laws with PyTorch: parameters that are added later, gradients that are set to zero in place or
tell to which parameter they belong, runs that are watched, and densities that hide."""

import copy
import gc
import os
import random
import tempfile
import threading
import time
from dataclasses import asdict

import horovod.torch as hvd
import numpy as np
import torch
from _common import SPARSE_ONLY, Cases, Scripted, caught
from _torch_cases import (
    Books,
    digest_of,
    give_gradients,
    last_rank,
    make_variables,
    optimizer_without_motion,
    params_of,
)
from harness import slow
from torch import nn

from hvd_sparse.cli.timeline import read_trace
from hvd_sparse.plan.measurements import STEPS, WARMUP
from hvd_sparse.torch import Compression
from hvd_sparse.tracing import SETTING, path_of

cases = Cases()


def integers(shape, *seed):
    return torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(hash(seed))).float()


@cases
def parameters_added_later(name):
    books, lost = Books({"first": (16, 40), "removed": (3, 4)}, "topk", name=name), []
    for step in range(20):
        if step == 10:
            state = books.compressor.state_dict()
            books.compressor.close()
            del books.run
            while gc.collect():  # garbage of the cases before may hold what this one drops
                pass
            books.variables |= make_variables({"later": (60, 5)})
            books.given["later"] = books.applied["later"] = np.zeros((60, 5))
            for each in (books.variables, books.given, books.applied):
                del each["removed"]
            books.compressor = books.compress()
            taken = books.compressor.load_state_dict(state, strict=False)
            books.wrap()
        books.take_step(books.gradients(step))
        lost.append(books.lost())
    tensors = books.compressor.state_dict()["tensors"]
    books.compressor.close()
    steps = {key: tensor["steps"] for key, tensor in tensors.items()}
    return {"lost": lost, "taken": taken, "steps": steps}


@cases
def gradients_of_equal_shapes(name):
    """Compare every reduced gradient with that of its parameter, at density 1.0. The order of hooks
    differs between ranks and steps, and a third of the gradients is missing."""
    parameters = {f"p{i}": nn.Parameter(torch.zeros(2, 3)) for i in range(50)}
    compressor = Compression.topk(parameters.items(), density=1.0, name=name, **SPARSE_ONLY)
    optimizer = optimizer_without_motion(parameters, compressor, op=hvd.Sum)
    swapped = []
    for step in range(10):
        for parameter in parameters.values():
            if parameter.grad is not None and step % 3:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()
        order = random.Random(100 * step + hvd.rank()).sample(range(50), 50)
        for i in (i for i in order if takes_part(i, step, hvd.rank())):
            give_gradients({parameters[f"p{i}"]: torch.full((2, 3), mark_of(i, step, hvd.rank()))})
        optimizer.step()
        for i in range(50):
            wanted = sum(
                mark_of(i, step, rank) for rank in range(hvd.size()) if takes_part(i, step, rank)
            )
            if not torch.equal(parameters[f"p{i}"].grad, torch.full((2, 3), float(wanted))):
                swapped.append([step, i])
    compressor.close()
    return {"swapped": swapped}


@cases
def gradients_zeroed_in_place(name):
    parameters = {f"p{i}": nn.Parameter(torch.zeros(8, 6)) for i in range(3)}
    compressor = Compression.auto(parameters.items(), density=0.1, name=name, **SPARSE_ONLY)
    compressor._policy.trial = Scripted(3 * ["sparse"] + 2 * ["dense"] + 25 * ["sparse"])
    optimizer = optimizer_without_motion(parameters, compressor)
    tensors, places = [], []
    for step in range(30):
        for parameter in parameters.values():
            if parameter.grad is not None:
                parameter.grad.zero_()
        give_gradients(
            {p: integers(p.shape, hvd.rank(), step, i) for i, p in enumerate(parameters.values())}
        )
        optimizer.step()
        if step in (7, 29):
            tensors.append(living_tensors())
            places.append(len(compressor._index._position_at))
    compressor.close()
    return {"tensors": tensors, "places": places}


@cases
def results_are_resized_at_once(name):
    """Be slow with empty tensors, so that Horovod's thread resizes those that it has already."""
    variables = make_variables({"matrix": (8, 6)})
    compressor = Compression.topk(params_of(variables), density=0.5, name=name, **SPARSE_ONLY)
    detach, own, ranks = torch.Tensor.detach, hvd.rank(), hvd.size()

    def slowly(tensor):
        made = detach(tensor)
        time.sleep(0.1 if made.numel() == 0 else 0)
        return made

    torch.Tensor.detach = slowly
    try:
        given, splits = np.full(2 * ranks, own + 1.0), np.full(ranks, 2)
        pending = [
            compressor.collective.allgather(given, f"{name}.gathered"),
            compressor.collective.allreduce(given, f"{name}.reduced"),
            compressor.collective.alltoall(given, splits, f"{name}.exchanged"),
        ]
        return [each.wait(None).tolist() for each in pending]
    finally:
        torch.Tensor.detach = detach
        compressor.close()


@cases
def two_threads_begin_a_bucket(name):
    """Gradients come in two threads, as with two devices, and the first one takes long."""
    variables = make_variables({"slow": (8, 6), "quick": (8, 6)})
    options = {"density": 0.5, "name": name, "groups": 1, **SPARSE_ONLY}
    compressor = Compression.topk(params_of(variables), **options)
    prepare, entered, begun = compressor.step._prepare, threading.Event(), {}

    def slowly(position, *given):
        if position == 0 and hvd.rank() == 0:
            entered.set()
            time.sleep(0.3)
        prepare(position, *given)

    def compress(key):
        begun[key] = compressor.compress(variables[key].grad)

    for step in range(2):
        for parameter in variables.values():
            parameter.grad = integers(parameter.shape, hvd.rank(), step)
        compressor.step._prepare = slowly if step else prepare
        thread = threading.Thread(target=compress, args=["slow"])
        thread.start()
        if step and hvd.rank() == 0:
            entered.wait()
        compress("quick")
        thread.join()
        summed = {
            key: hvd.synchronize(hvd.allreduce_async_(begun[key][0], name=f"{name}.{key}"))
            for key in variables
        }
        results = [compressor.decompress(summed[key], begun[key][1]) for key in variables]
    compressor.close()
    return [each.tolist() for each in results]


def living_tensors():
    """Return the number of tensors in memory, the smallest of twenty counts, because Horovod's
    thread releases a message a little late."""
    counts = []
    for _ in range(20):
        gc.collect()
        counts.append(sum(type(thing) is torch.Tensor for thing in gc.get_objects()))
        time.sleep(slow(0.025))
    return min(counts)


def takes_part(number, step, rank):
    return (number + step + 2 * rank) % 3 != 0


def mark_of(number, step, rank):
    return float(1 + number + 64 * rank + 1024 * step)


@cases
def other_groups_on_one_rank(name):
    variables = make_variables({"wide": (16, 40), "tall": (60, 5)})
    options = {"density": 0.05, "name": name, **SPARSE_ONLY}
    compressor = Compression.ldte_bs(params_of(variables), **options)
    said = caught(compressor.regroup, 1 if hvd.rank() == 0 else 2)
    compressor.close()
    return said


# -- watching a run -------------------------------------------------------------------------------

WATCHED, WATCHED_STEPS, EVERY = {"wide": (40, 30), "tall": (90, 8)}, 5, 2


def train_watched(name, **options):
    books, seen = Books(WATCHED, "ldte_bs", density=0.1, name=name, **options), []
    for step in range(WATCHED_STEPS):
        seen.append(digest_of(books.take_step(books.gradients(step))))
        books.compressor.log(loss=torch.tensor(0.5, requires_grad=True))
    found = {"summary": books.compressor.summary(all_ranks=True), **books.compressor.stats()}
    books.compressor.close()
    return {"gradients": seen, **found}


@cases
def watched(name):
    heard = []
    plain = train_watched(f"{name}.plain")
    # One rank alone is told to write: what is written is no affair of the others.
    options = {} if hvd.rank() else {"telemetry": heard.append, "telemetry_every": EVERY}
    found = train_watched(f"{name}.watched", **options)
    return {**found, "records": heard, "plain": plain["gradients"]}


@cases
def timeline(name):
    os.environ[SETTING] = f"{tempfile.mkdtemp()}/ours.json"
    try:
        first, last = nn.Linear(16, 32), nn.Linear(32, 8)
        named = {"first": first.weight, "last": last.weight}
        options = {"groups": [["first"], ["last"]], "name": name, **SPARSE_ONLY}
        compressor = Compression.topk(named.items(), density=0.1, **options)
        optimizer = optimizer_without_motion(named, compressor)
        for _ in range(WATCHED_STEPS):
            optimizer.zero_grad()
            last(first(torch.ones(4, 16))).sum().backward()
            optimizer.step()
        compressor.close()
        events = read_trace(path_of(os.environ[SETTING], hvd.rank()))
    finally:
        del os.environ[SETTING]
    spans = {}
    for event in events:
        if event["ph"] == "X":
            whose = event.get("args", {}).get("of", "").rpartition(" ")[2]
            span = (event["ts"], event["ts"] + event["dur"])
            spans.setdefault(f"{event['name']} {whose}", []).append(span)
    pairs = zip(spans["exchange last"], spans["select first"])
    return {
        "spans": {what: len(found) for what, found in spans.items()},
        "started_before": [begin < chosen < end for (begin, end), (chosen, _) in pairs],
    }


# -- densities that hide --------------------------------------------------------------------------

HIDING = {"wide": (160, 40), "tall": (600, 5), "one": (30,), "deep": (40, 5, 6), "small": (3, 3)}
C_MAX = 50
AWAY_S = 5e-3
ADOPTED_AT = WARMUP + STEPS
SAVED_AT = ADOPTED_AT + 2


def ledger_of(name):
    ledger = Books(HIDING, "topk", density=f"hiding:{C_MAX}", name=name)
    for parameter in ledger.variables.values():
        parameter.register_hook(lambda _: time.sleep(AWAY_S))
    return ledger


def asked_of(ledger):
    tensors = ledger.compressor.stats()["tensors"]
    return {key: figures["density_asked"] for key, figures in tensors.items()}


@cases
def densities_that_hide(name):
    ledger = ledger_of(name)
    compressor = ledger.compressor
    lost, asked, applied, state = [], [], [], {}
    for step in range(SAVED_AT + 3):
        if step == SAVED_AT:
            state = copy.deepcopy(compressor.state_dict())
        applied.append(digest_of(ledger.take_step(ledger.gradients(step))))
        lost.append(ledger.lost())
        asked.append(asked_of(ledger))
    found, told, summary = asdict(compressor.hiding), compressor.stats(), compressor.summary()
    alike = ledger.alike([asked, found])
    compressor.rejoin()
    anew = compressor.stats()["hiding"]["is_measured"]
    compressor.close()
    again = ledger_of(f"{name}.again")
    again.compressor.load_state_dict(state)
    steps = range(SAVED_AT, SAVED_AT + 3)
    went_on = [digest_of(again.take_step(again.gradients(step))) for step in steps]
    resumed = asked_of(again), again.compressor.hiding is None
    again.compressor.close()
    return {
        "lost": lost,
        "asked": asked,
        "alike": alike,
        "found": found,
        "told": told["hiding"],
        "summary": summary,
        "is_measured_in_a_new_world": anew,
        "goes_on": went_on == applied[SAVED_AT:],
        "resumed": resumed,
    }


@cases
def other_densities_on_one_rank(name):
    ledger = ledger_of(name)
    for step in range(ADOPTED_AT + 1):
        ledger.take_step(ledger.gradients(step))
    state = copy.deepcopy(ledger.compressor.state_dict())
    if last_rank():
        state["tensors"]["wide"]["density"] = 0.123
    ledger.compressor.load_state_dict(state)
    said = caught(ledger.take_step, ledger.gradients(ADOPTED_AT + 1))
    ledger.compressor.close()
    return said
