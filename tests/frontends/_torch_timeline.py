"""Timelines of a real run: ours beside Horovod's, and messages under way while gradients are still
computed."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import torch
from _common import SPARSE_ONLY, Cases
from _torch_laws import optimizer_without_motion
from harness import slow
from torch import nn

from hvd_sparse.cli.timeline import merge_traces, read_trace
from hvd_sparse.torch import Compression
from hvd_sparse.tracing.chrome_trace import SETTING, path_of

STEPS = 3
PAUSE_S = slow(0.1)
cases = Cases()


class Pause(torch.autograd.Function):
    """A layer whose backward pass takes a while."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        time.sleep(PAUSE_S)
        return gradient


def train(name: str) -> list[str]:
    """Two layers with a pause between them, each a message of its own; the messages' names."""
    first, last = nn.Linear(16, 32), nn.Linear(32, 8)
    named = [("first", first.weight), ("last", last.weight)]
    compressor = Compression.topk(
        named, density=0.1, name=name, groups=[["first"], ["last"]], **SPARSE_ONLY
    )
    optimizer = optimizer_without_motion(dict(named), compressor)
    for _ in range(STEPS):
        optimizer.zero_grad()
        last(Pause.apply(first(torch.ones(4, 16)))).sum().backward()
        optimizer.step()
    compressor.close()
    return [f"hvd_sparse.{name}.{index}" for index in range(2)]


def spans_of(events: list[dict[str, Any]], what: str, whose: str) -> list[tuple[float, float]]:
    found = [
        event
        for event in events
        if event.get("name") == what and event.get("args", {}).get("of") == whose
    ]
    return [(event["ts"], event["ts"] + event["dur"]) for event in found]


def allgathers_of(events: list[dict[str, Any]], message: str) -> list[float]:
    """When Horovod had gathered a message: each end of its outermost ALLGATHER."""
    names = {
        event["pid"]: event["args"]["name"]
        for event in events
        if event.get("name") == "process_name"
    }
    open_by: dict[int, list[str]] = {}
    ends = []
    for event in events:
        stack = open_by.setdefault(event["pid"], [])
        if event["ph"] == "B":
            stack.append(event["name"])
        elif (
            event["ph"] == "E"
            and stack.pop() == "ALLGATHER"
            and names[event["pid"]] == f"allgather.{message}"
        ):
            ends.append(event["ts"])
    return ends


@cases
def early_messages_are_through_while_later_gradients_are_computed(name: str) -> dict[str, Any]:
    folder = hvd.broadcast_object(
        tempfile.mkdtemp() if hvd.rank() == 0 else None, name=f"{name}.folder"
    )
    os.environ[SETTING] = f"{folder}/ours.json"
    hvd.start_timeline(f"{folder}/horovod.json")
    try:
        first, last = train(name)
    finally:
        hvd.stop_timeline()
        del os.environ[SETTING]
    hvd.barrier()
    ours = read_trace(path_of(f"{folder}/ours.json", hvd.rank()))
    traces = {"ours": ours}
    if hvd.rank() == 0:
        traces["horovod"] = read_trace(Path(folder) / "horovod.json")
    events = merge_traces(traces)
    selects = {key: spans_of(events, "select", key) for key in ("first", "last")}
    exchanges = {
        key: spans_of(events, "exchange", f"{m}: {key}")
        for key, m in (("first", first), ("last", last))
    }
    return {
        "kinds": sorted(
            {
                event["name"]
                for event in events
                if event["ph"] == "X" and "of" in event.get("args", {})
            }
        ),
        "spans": [len(spans) for spans in (*selects.values(), *exchanges.values())],
        "started_before": [e[0] < s[0] < e[1] for e, s in zip(exchanges["last"], selects["first"])],
        "gathered_before": [
            end < s[0] for end, s in zip(allgathers_of(events, last), selects["first"])
        ],
        "begun_after": [end > s[1] for end, s in zip(allgathers_of(events, last), selects["last"])],
    }
