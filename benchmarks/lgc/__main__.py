"""What LGC's autoencoder brings: bytes, time and error beside ScaleCom and values of few bits.

Trains a small network on Fashion-MNIST by simulated workers, and the autoencoder on the values that
they send; writes docs/results/lgc.md and .json.  Needs Debian's package dataset-fashion-mnist; some
minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import track

from benchmarks._streams import environment, json_by_line
from benchmarks.lgc import page
from benchmarks.lgc.training import Run, relative_error
from hvd_sparse.codecs.contract import Codec
from hvd_sparse.core.kernels.engines import resolve_engine
from hvd_sparse.registry import CODECS
from hvd_sparse.types import Selection

TASK, DENSITY, WORKERS, INNOVATION = "fashion_mnist", 0.01, 8, 1e-5
STEPS, DENSE_STEPS, LEARNING_STEPS, LOOKED_AT = 600, 100, 300, 50
"""LGC's phases are 200 and 300 steps in the open implementation."""
VALUES = ("float32", "int8", "int4", "int2")


def seconds_of(call: Callable[[], object]) -> float:
    """Return the processor's seconds of this thread in a call."""
    began_s = time.thread_time()
    call()
    return time.thread_time() - began_s


def look(run: Run, vectors: torch.Tensor, chosen: torch.Tensor) -> list[dict[str, Any]]:
    """Return bytes, errors and seconds of every way for one step's values."""
    kernels, mean = resolve_engine(None), vectors.mean(0).numpy()
    indices = chosen.numpy().astype(np.uint32)
    rows = []
    for values in VALUES:
        codec: Codec = CODECS.create("golomb", values=values)
        sent = [Selection(indices, np.ascontiguousarray(v.numpy()), run.numel) for v in vectors]
        frames = [codec.encode(each, kernels) for each in sent]
        back = [_at(indices, codec.decode(frame, kernels)) for frame in frames]
        encode_s = statistics.median(
            seconds_of(partial(codec.encode, each, kernels)) for each in sent
        )
        decode_s = sum(seconds_of(partial(codec.decode, frame, kernels)) for frame in frames)
        nbytes = statistics.median(frame.size for frame in frames)
        error = relative_error(mean, np.mean(back, axis=0))
        rows.append({"way": values, "bytes": nbytes, "error": error, "s": encode_s + decode_s})
    found = run.rebuilt(vectors)
    scale = float(vectors.square().mean().sqrt())
    code = run.learner.encode(vectors[0], scale)
    encode_s = seconds_of(partial(run.learner.encode, vectors[0], scale))
    decode_s = seconds_of(partial(run.learner.decode, code, vectors[0], scale))
    error = relative_error(mean, found.numpy())
    rows.append({"way": "lgc", "bytes": 4 * code.numel(), "error": error, "s": encode_s + decode_s})
    return rows


def _at(indices: np.ndarray, decoded: Selection) -> np.ndarray:
    """Return the decoded values at all indices: exact zeros may have been left out."""
    found = np.zeros(indices.size, decoded.values.dtype)
    found[np.searchsorted(indices, decoded.indices)] = decoded.values
    return found


def measure(steps: int, dense_steps: int, learning_steps: int, looked_at: int) -> dict[str, Any]:
    """Return the errors along a training, the costs at its end, and the scores of all ways."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {"curve": [], "costs": [], "scores": []}
    run = Run(TASK, DENSITY, WORKERS, INNOVATION, (dense_steps, steps))
    learning_s, last = [], steps - dense_steps - looked_at
    every = max(1, (steps - dense_steps) // 10)
    sent = enumerate(run.steps(steps))
    for number, (vectors, chosen) in track(sent, "ScaleCom", total=steps - dense_steps):
        if (number + 1) % every == 0:
            error = relative_error(vectors.mean(0).numpy(), run.rebuilt(vectors).numpy())
            found["curve"].append({"steps": number + 1, "error": error})
        if number >= last:
            found["costs"] += look(run, vectors, chosen)
            learning_s.append(seconds_of(partial(run.learner.learn, vectors)))
    found["scores"].append({"way": "exact", "score": run.data.score(run.network)})
    for way, phases in (("lgc", (dense_steps, learning_steps)), ("dense", (steps, 0))):
        other = Run(TASK, DENSITY, WORKERS, INNOVATION, phases)
        for _ in other.steps(steps):
            pass
        found["scores"].append({"way": way, "score": other.data.score(other.network)})
    settings = {"task": TASK, "density": DENSITY, "workers": WORKERS, "innovation": INNOVATION}
    phases = {"steps": steps, "dense_steps": dense_steps, "learning_steps": learning_steps}
    sizes = {"numel": run.numel, "count": int(vectors.shape[1])}
    costs = [_median(found["costs"], way) for way in (*VALUES, "lgc")]
    learned = {"learning_s": statistics.median(learning_s)}
    head = {"made_with": environment(), **settings, **phases, **sizes, **learned}
    return {**head, **found, "costs": costs}


def _median(rows: list[dict[str, Any]], way: str) -> dict[str, Any]:
    mine = [row for row in rows if row["way"] == way]
    medians = {key: statistics.median(row[key] for row in mine) for key in ("bytes", "error", "s")}
    return {"way": way, **medians}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.lgc",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="few steps: no figures to quote")
    parser.add_argument("--render", action="store_true", help="measure nothing, write the page")
    parser.add_argument("--output", type=Path, default=Path("docs/results/lgc"))
    options = parser.parse_args()
    record = options.output.with_suffix(".json")
    if not options.render:
        sizes = (16, 4, 6, 2) if options.quick else (STEPS, DENSE_STEPS, LEARNING_STEPS, LOOKED_AT)
        found = measure(*sizes)
        lists = {key: found.pop(key) for key in ("curve", "costs", "scores")}
        options.output.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(json_by_line(found, lists), encoding="utf-8")
    text = page.render(json.loads(record.read_text(encoding="utf-8")))
    options.output.with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
