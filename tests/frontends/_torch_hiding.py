"""``density="hiding"``: all ranks adopt the same densities at one step; no entry is lost."""

import copy
import time
from dataclasses import asdict
from functools import partial

import horovod.torch as hvd
import torch
from _common import SPARSE_ONLY, Cases, caught
from _torch_cases import Books, digest_of

from hvd_sparse.plan.measurements import STEPS, WARMUP
from hvd_sparse.torch import Compression, LocalSteps

SHAPES = {"wide": (160, 40), "tall": (600, 5), "one": (30,), "deep": (40, 5, 6), "small": (3, 3)}
C_MAX = 50
AWAY_S = 5e-3
ADOPTED_AT = WARMUP + STEPS
SAVED_AT = ADOPTED_AT + 2
TAKEN = SAVED_AT + 3
cases = Cases()


def ledger_of(name, density=f"hiding:{C_MAX}", **options):
    ledger = Books(
        SHAPES,
        lambda named: Compression.topk(
            named, density=density, name=name, **{**SPARSE_ONLY, **options}
        ),
    )
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
    for step in range(TAKEN):
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
    steps = range(SAVED_AT, TAKEN)
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
    if hvd.rank() == hvd.size() - 1:
        state["tensors"]["wide"]["density"] = 0.123
    ledger.compressor.load_state_dict(state)
    said = caught(ledger.take_step, ledger.gradients(ADOPTED_AT + 1))
    ledger.compressor.close()
    return said


@cases
def where_nothing_hides_it_is_refused(name):
    parameters = {"a": torch.nn.Parameter(torch.zeros(40, 30))}
    descent = torch.optim.SGD(parameters.values(), lr=0.1)
    named = parameters.items()
    hiding = partial(Compression.topk, density="hiding", name=name)
    return [
        caught(lambda: Compression.auto(named, density="hiding", name=name)),
        caught(lambda: LocalSteps(descent, named, compression=hiding, every=2)),
    ]
