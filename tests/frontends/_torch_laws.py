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

import _torch_cases as fw
import horovod.torch as hvd
import numpy as np
import torch
from _common import SPARSE_ONLY, Cases, Scripted, caught
from harness import slow
from torch import nn

from hvd_sparse.cli.timeline import read_trace
from hvd_sparse.plan.measuring import STEPS, WARMUP
from hvd_sparse.state.checkpoint_file import read
from hvd_sparse.torch import Compression
from hvd_sparse.tracing import SETTING, path_of

laws = Cases()
"""Cases that assert what must hold on every rank, and return nothing."""


def integers(shape, *seed):
    return torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(hash(seed))).float()


@laws
def parameters_added_later_join_and_nothing_of_the_others_is_lost(name):
    books, lost = fw.Books({"first": (16, 40), "removed": (3, 4)}, "topk", name=name), []
    for step in range(20):
        if step == 10:
            state = books.compressor.state_dict()
            books.compressor.close()
            del books.run
            while gc.collect():  # garbage of the cases before may hold what this one drops
                pass
            books.variables |= fw.make_variables({"later": (60, 5)})
            books.given["later"] = books.applied["later"] = np.zeros((60, 5))
            for each in (books.variables, books.given, books.applied):
                del each["removed"]
            books.compressor = books.compress()
            taken = books.compressor.load_state_dict(state, strict=False)
            assert taken == (["later"], ["removed"]), taken
            books.wrap()
        books.take_step(books.gradients(step))
        lost.append(books.lost())
    tensors = books.compressor.state_dict()["tensors"]
    books.compressor.close()
    assert lost == [0] * 20, lost
    assert {key: each["steps"] for key, each in tensors.items()} == {"first": 20, "later": 10}


@laws
def no_gradient_is_taken_for_another(name):
    """Compare every reduced gradient with that of its parameter, at density 1.0. The order of hooks
    differs between ranks and steps, and a third of the gradients is missing."""
    parameters = nn.ParameterDict({f"p{i}": torch.zeros(2, 3) for i in range(50)})
    compressor = Compression.topk(parameters.items(), density=1.0, name=name, **SPARSE_ONLY)
    optimizer = fw.optimizer_without_motion(parameters, compressor, op=hvd.Sum)
    swapped = []
    for step in range(10):
        parameters.zero_grad(set_to_none=step % 3 > 0)
        order = random.Random(100 * step + hvd.rank()).sample(range(50), 50)
        for i in (i for i in order if takes_part(i, step, hvd.rank())):
            fw.give_gradients(
                {parameters[f"p{i}"]: torch.full((2, 3), mark_of(i, step, hvd.rank()))}
            )
        optimizer.step()
        for i in range(50):
            wanted = sum(
                mark_of(i, step, rank) for rank in range(hvd.size()) if takes_part(i, step, rank)
            )
            if not parameters[f"p{i}"].grad.eq(wanted).all():
                swapped.append([step, i])
    compressor.close()
    assert swapped == [], swapped


@laws
def gradients_zeroed_in_place_make_no_memory_grow(name):
    parameters = nn.ParameterDict({f"p{i}": torch.zeros(8, 6) for i in range(3)})
    compressor = Compression.auto(parameters.items(), density=0.1, name=name, **SPARSE_ONLY)
    compressor._policy.trial = Scripted(3 * ["sparse"] + 2 * ["dense"] + 25 * ["sparse"])
    optimizer = fw.optimizer_without_motion(parameters, compressor)
    tensors = []
    for step in range(30):
        parameters.zero_grad(set_to_none=False)
        fw.give_gradients(
            {p: integers(p.shape, hvd.rank(), step, i) for i, p in enumerate(parameters.values())}
        )
        optimizer.step()
        if step in (7, 29):
            tensors.append(living_tensors())
    compressor.close()
    assert len(set(tensors)) == 1, tensors


@laws
def results_that_horovod_resizes_at_once_arrive(name):
    """Be slow with empty tensors, so that Horovod's thread resizes those that it has already."""
    variables = fw.make_variables({"matrix": (8, 6)})
    compressor = Compression.topk(fw.params_of(variables), density=0.5, name=name, **SPARSE_ONLY)
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
        gathered, reduced, exchanged = (each.wait(None).tolist() for each in pending)
    finally:
        torch.Tensor.detach = detach
        compressor.close()
    from_all = [rank + 1.0 for rank in range(ranks) for _ in range(2)]
    assert gathered == [number for number in from_all for _ in range(ranks)], gathered
    assert reduced == 2 * ranks * [sum(range(1, ranks + 1))], reduced
    assert exchanged == from_all, exchanged


@laws
def two_threads_begin_a_bucket_once(name):
    """Gradients come in two threads, as with two devices, and the first one takes long."""
    variables = fw.make_variables({"slow": (8, 6), "quick": (8, 6)})
    options = {"density": 0.5, "name": name, "groups": 1, **SPARSE_ONLY}
    compressor = Compression.topk(fw.params_of(variables), **options)
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
    assert len(set(hvd.allgather_object(fw.digest_of(results), name=f"{name}.alike"))) == 1


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


# -- watching a run -------------------------------------------------------------------------------

WATCHED, WATCHED_STEPS, EVERY = {"wide": (40, 30), "tall": (90, 8)}, 5, 2
WATCHED_NAME = "watched"


def train_watched(name, **options):
    books, seen = fw.Books(WATCHED, "ldte_bs", density=0.1, name=name, **options), []
    for step in range(WATCHED_STEPS):
        seen.append(fw.digest_of(books.take_step(books.gradients(step))))
        books.compressor.log(loss=torch.tensor(0.5, requires_grad=True))
    summary = books.compressor.summary(all_ranks=True)
    books.compressor.close()
    return seen, summary


@laws
def watching_changes_no_bit_and_tells_what_was_sent(name):
    heard = []
    plain, _ = train_watched(f"{name}.plain")
    # One rank alone is told to write: what is written is no affair of the others.
    options = {} if hvd.rank() else {"telemetry": heard.append, "telemetry_every": EVERY}
    seen, summary = train_watched(WATCHED_NAME, **options)
    assert seen == plain
    for rank in range(hvd.size()):
        assert f"\n{rank:>4}  " in summary, "a row a rank, on every rank"
    if hvd.rank():
        assert heard == []
        return
    run, *records = [each for each in heard if each["event"] != "metrics"]
    assert run["event"] == "run" and run["world_size"] == hvd.size()
    assert [each["step"] for each in records] == [1, 2, 4]
    assert all(set(each["tensors"]) == set(WATCHED) for each in records)
    metrics = [(each["step"], each["loss"]) for each in heard if each["event"] == "metrics"]
    assert metrics == [(step, 0.5) for step in range(1, WATCHED_STEPS + 1)]


@laws
def an_early_message_is_under_way_while_later_gradients_are_computed(name):
    os.environ[SETTING] = f"{tempfile.mkdtemp()}/ours.json"
    try:
        first, last = nn.Linear(16, 32), nn.Linear(32, 8)
        named = {"first": first.weight, "last": last.weight}
        options = {"groups": [["first"], ["last"]], "name": name, **SPARSE_ONLY}
        compressor = Compression.topk(named.items(), density=0.1, **options)
        optimizer = fw.optimizer_without_motion(named, compressor)
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
    for what in ("select", "encode", "exchange", "decode"):
        for whose in ("first", "last"):
            assert len(spans[f"{what} {whose}"]) == WATCHED_STEPS, (what, whose)
    for (begin, end), (chosen, _) in zip(spans["exchange last"], spans["select first"]):
        assert begin < chosen < end


# -- densities that hide --------------------------------------------------------------------------

HIDING = {"wide": (160, 40), "tall": (600, 5), "one": (30,), "deep": (40, 5, 6), "small": (3, 3)}
C_MAX = 50
AWAY_S = 5e-3
ADOPTED_AT = WARMUP + STEPS
SAVED_AT = ADOPTED_AT + 2


def ledger_of(name):
    ledger = fw.Books(HIDING, "topk", density=f"hiding:{C_MAX}", name=name)
    for parameter in ledger.variables.values():
        parameter.register_hook(lambda _: time.sleep(AWAY_S))
    return ledger


def asked_of(ledger):
    tensors = ledger.compressor.stats()["tensors"]
    return {key: figures["density_asked"] for key, figures in tensors.items()}


@laws
def all_ranks_send_what_hides_nothing_is_lost_and_a_new_world_measures_anew(name):
    ledger = ledger_of(name)
    compressor = ledger.compressor
    lost, asked, applied, state = [], [], [], {}
    for step in range(SAVED_AT + 3):
        if step == SAVED_AT:
            state = copy.deepcopy(compressor.state_dict())
        applied.append(fw.digest_of(ledger.take_step(ledger.gradients(step))))
        lost.append(ledger.lost())
        asked.append(asked_of(ledger))
    assert ledger.alike([asked, asdict(compressor.hiding)])
    assert not any(lost), lost
    assert all(set(each.values()) == {1 / C_MAX} for each in asked[:ADOPTED_AT])
    found = asdict(compressor.hiding)["densities"]
    assert sorted(found) == sorted(HIDING)
    assert asked[ADOPTED_AT:] == [found] * (len(asked) - ADOPTED_AT)
    assert min(found.values()) == 1 / C_MAX, "nothing is computed behind the last gradient"
    assert max(found.values()) <= 1
    assert compressor.stats()["hiding"] == {"c_max": C_MAX, "is_measured": True}
    assert "measured densities that hide" in compressor.summary()
    compressor.rejoin()
    assert not compressor.stats()["hiding"]["is_measured"]
    compressor.close()
    again = ledger_of(f"{name}.again")
    again.compressor.load_state_dict(state)
    steps = range(SAVED_AT, SAVED_AT + 3)
    went_on = [fw.digest_of(again.take_step(again.gradients(step))) for step in steps]
    assert went_on == applied[SAVED_AT:]
    assert asked_of(again) == found and again.compressor.hiding is None  # by the state
    again.compressor.close()


@laws
def states_with_other_densities_are_refused_on_all_ranks(name):
    ledger = ledger_of(name)
    for step in range(ADOPTED_AT + 1):
        ledger.take_step(ledger.gradients(step))
    state = copy.deepcopy(ledger.compressor.state_dict())
    if fw.last_rank():
        state["tensors"]["wide"]["density"] = 0.123
    ledger.compressor.load_state_dict(state)
    said = caught(ledger.take_step, ledger.gradients(ADOPTED_AT + 1))
    ledger.compressor.close()
    words = "the ranks have loaded states with different densities"
    assert ("nothing was raised" if hvd.size() == 1 else words) in said, said


@laws
def a_file_has_the_states_of_the_ranks_that_are_left(name):
    """If workers only leave, Horovod restarts the others without ``sync``."""
    books = fw.Books({"wide": (16, 20)}, "topk", density=0.1, name=name)
    books.take_step(books.gradients(0))
    compressor, here = books.compressor, (hvd.rank(), hvd.size())
    path = hvd.broadcast_object(f"{tempfile.mkdtemp()}/state", name=f"{name}.path")
    compressor._is_elastic, worlds = True, []
    for transfer in (compressor.save, compressor.load):
        compressor.step.meet(hvd.rank(), hvd.size() + 1)  # before the last worker left
        transfer(path)
        worlds.append((compressor.step.rank, compressor.step.world_size))
    states = [(state["rank"], state["world_size"]) for state in read(path)]
    books.take_step(books.gradients(1))
    compressor.close()
    assert worlds == [here, here]
    assert states == [(rank, hvd.size()) for rank in range(hvd.size())]
