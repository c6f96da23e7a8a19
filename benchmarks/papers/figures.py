"""What is measured: residuals of workers beside each other, contraction, ratios, histograms."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import stats

from benchmarks._gradients import Gradients
from benchmarks.papers.training import Training
from hvd_sparse.autotune.costmodel.architectures import parameters
from hvd_sparse.codecs.run16 import Run16
from hvd_sparse.types import Selection

BINS = 121
LISTED_BITS = {"convolution": 8, "other": 16}
"""Of an entry that AdaComp sends: its place in a bin of 50 or 500, and two bits of its value."""


def similarity(
    task: str, method: str, workers: int, steps: int, every: int
) -> list[dict[str, Any]]:
    """Return the mean cosine between the residuals of two workers, over the steps of a training at
    density 0.01 (ScaleCom's similarity of memories)."""
    training = Training(task, method, 0.01, workers, steps)
    rows = []
    for step in training:
        if step % every == 0 or step == 1:
            rows.append({"method": method, "step": step, "cosine": cosine(training.residuals())})
    return rows


def cosine(vectors: np.ndarray) -> float:
    """Return the mean cosine over all pairs of rows, float [rows, n]."""
    wide = vectors.astype(np.float64)
    units = wide / np.linalg.norm(wide, axis=1, keepdims=True)
    products = units @ units.T
    return round(float(products[np.triu_indices(len(units), 1)].mean()), 4)


def contraction(task: str, density: float, workers: int, steps: int) -> dict[str, Any]:
    """Return what exact top-k keeps back of what was accumulated, squared, beside 1 - k/n and
    GaussianK's (1 - k/n)**2."""
    training = Training(task, "topk,telemetry=True", density, workers, steps)
    for _ in training:
        pass
    report = training.report()
    names = ("contraction", "contraction_bound", "contraction_of_bells")
    return {"task": task, "density": density, **{name: report[name] for name in names}}


def adacomp(task: str, workers: int, steps: int) -> list[dict[str, Any]]:
    """Return AdaComp's density and effective ratio by tensor: 32 bits of every entry over the 8 or
    16 that its paper counts for one that is sent."""
    training = Training(task, "adacomp", None, workers, steps)
    for _ in training:
        pass
    shapes = {name: tuple(p.shape) for name, p in training.network.named_parameters()}
    rows = []
    for name, told in training.report()["tensors"].items():
        density = told["density_achieved"]
        if density is None:
            continue
        kind = "convolution" if len(shapes[name]) > 2 else "other"
        ratio = 32 / (LISTED_BITS[kind] * density)
        rows.append(
            {"task": task, "tensor": name, "kind": kind, "density": density, "ratio": ratio}
        )
    return rows


def dgc_bytes(density: float = 0.001) -> dict[str, Any]:
    """Return the bytes of ResNet-50's gradient by DGC's coding, 16-bit runs and values, with exact
    top-k of drawn gradients; tensors of one dimension are sent dense."""
    dense = packed = 0
    for listed in parameters("resnet50"):
        numel = int(np.prod(listed.shape))
        dense += 4 * numel
        if len(listed.shape) == 1:
            packed += 4 * numel
            continue
        values = Gradients.draw(numel, numel).at(0)
        count = max(1, round(density * numel))
        places = np.sort(np.argpartition(-np.abs(values), count - 1)[:count])
        chosen = Selection(places, values[places], numel)
        packed += Run16().encode(chosen).nbytes
    return {"density": density, "dense": dense, "packed": packed, "ratio": dense / packed}


def histogram(task: str, workers: int, steps: int) -> dict[str, Any]:
    """Return the histogram of one worker's residuals at density 0.001, all compressed tensors, with
    the densities of the fitted Laplace and normal distributions at the bins' middles."""
    training = Training(task, "topk", 0.001, workers, steps)
    for _ in training:
        pass
    vector = training.residuals()[0].astype(np.float64)
    reach = float(np.quantile(np.abs(vector), 0.999))
    counts, edges = np.histogram(vector, BINS, (-reach, reach), density=True)
    middles = (edges[1:] + edges[:-1]) / 2
    median = float(np.median(vector))
    laplace = stats.laplace(median, np.abs(vector - median).mean()).pdf(middles)
    normal = stats.norm(vector.mean(), vector.std()).pdf(middles)
    named = {"middles": middles, "measured": counts, "laplace": laplace, "normal": normal}
    return {name: [round(float(v), 6) for v in values] for name, values in named.items()}
