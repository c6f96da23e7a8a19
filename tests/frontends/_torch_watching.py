"""Watching a run changes no bit, and messages are sent while gradients are computed."""

import os
import tempfile
import time

import horovod.torch as hvd
import torch
from _common import SPARSE_ONLY, Cases
from _torch_cases import Books, digest_of, optimizer_without_motion
from harness import slow
from torch import nn

from hvd_sparse.cli.timeline import read_trace
from hvd_sparse.torch import Compression
from hvd_sparse.tracing import SETTING, path_of

EVERY, STEPS = 2, 5
SHAPES = {"wide": (40, 30), "tall": (90, 8)}
cases = Cases()


def train(name, **options):
    chosen = {"density": 0.1, "name": name, **SPARSE_ONLY, **options}
    books = Books(SHAPES, lambda named: Compression.ldte_bs(named, **chosen))
    seen = []
    for step in range(STEPS):
        seen.append(digest_of(books.take_step(books.gradients(step))))
        books.compressor.log(loss=torch.tensor(0.5, requires_grad=True))
    found = {"summary": books.compressor.summary(all_ranks=True), **books.compressor.stats()}
    books.compressor.close()
    return {"gradients": seen, **found}


@cases
def watched(name):
    heard = []
    plain = train(f"{name}.plain")
    # One rank alone is told to write: what is written is no affair of the others.
    options = {} if hvd.rank() else {"telemetry": heard.append, "telemetry_every": EVERY}
    found = train(f"{name}.watched", **options)
    return {**found, "records": heard, "plain": plain["gradients"]}


class Pause(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        time.sleep(slow(0.1))
        return gradient


@cases
def timeline(name):
    os.environ[SETTING] = f"{tempfile.mkdtemp()}/ours.json"
    try:
        first, last = nn.Linear(16, 32), nn.Linear(32, 8)
        named = {"first": first.weight, "last": last.weight}
        options = {"groups": [["first"], ["last"]], "name": name, **SPARSE_ONLY}
        compressor = Compression.topk(named.items(), density=0.1, **options)
        optimizer = optimizer_without_motion(named, compressor)
        for _ in range(STEPS):
            optimizer.zero_grad()
            last(Pause.apply(first(torch.ones(4, 16)))).sum().backward()
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
