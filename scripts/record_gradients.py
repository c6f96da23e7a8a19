#!/usr/bin/env python3
"""Record accumulated gradients for the tests, from small models that are trained with exact top-k
and error feedback.

    python scripts/record_gradients.py              writes tests/fixtures/gradients/

The script needs torch, scikit-learn and rich.  All runs with the same versions and the same kind of
processor write the same bytes.  Another Python has another character corpus, and another torch
rounds sums differently.  The manifest lists the versions with which the committed files were made.
The tests need only the files.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts" / "lib")]

from small_models import small_tasks  # noqa: E402

import hvd_sparse  # noqa: E402
from hvd_sparse.checks import count_from_density  # noqa: E402
from hvd_sparse.kernels import reference  # noqa: E402

SEED = 20210219
MIN_NUMEL = 1024
"""Entries of the smallest tensor that is compressed. Vectors are never compressed."""

KINDS = {
    "cnn": {"conv2.weight": "convolution", "fc1.weight": "fully connected"},
    "lstm": {
        "embedding.weight": "embedding",
        "lstm.weight_ih_l0": "recurrent",
        "lstm.weight_hh_l0": "recurrent",
    },
    "transformer": {
        "embedding.weight": "embedding",
        "encoder.layers.0.self_attn.in_proj_weight": "attention",
        "encoder.layers.1.linear1.weight": "fully connected",
    },
}


def accumulated(model: str, density: float, steps: int) -> Iterator[dict[str, np.ndarray]]:
    """Train with exact top-k; yield each step's gradient + residual by tensor, float32 [numel]."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    task, rng = small_tasks()[model](), np.random.default_rng(SEED)
    optimizer = torch.optim.SGD(task.model.parameters(), lr=task.learning_rate)
    weights = {
        name: parameter
        for name, parameter in task.model.named_parameters()
        if parameter.dim() > 1 and parameter.numel() >= MIN_NUMEL
    }
    residuals = {name: np.zeros(each.numel(), np.float32) for name, each in weights.items()}
    for _ in range(steps):
        optimizer.zero_grad()
        task.loss(*task.batch(rng)).backward()
        if task.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(task.model.parameters(), task.clip_norm)
        vectors = {
            name: residuals[name] + parameter.grad.numpy().reshape(-1)
            for name, parameter in weights.items()
        }
        for name, parameter in weights.items():
            vector, sent = vectors[name], np.zeros_like(residuals[name])
            indices = reference.take_largest(
                vector, count_from_density(vector.size, density)
            ).indices
            sent[indices] = vector[indices]
            residuals[name] = vector - sent
            parameter.grad = torch.from_numpy(sent).reshape(parameter.shape)
        optimizer.step()
        yield vectors


def record(model: str, density: float, steps: list[int]) -> list[tuple[dict, np.ndarray]]:
    """Return the manifest entries and vectors of one training. Steps count from 1."""
    recorded, shapes = [], dict(small_tasks()[model]().model.named_parameters())
    title = f"{model}, density {density:g}"
    training = accumulated(model, density, max(steps))
    console = Console(stderr=True)
    for step, vectors in enumerate(track(training, title, max(steps), console=console), 1):
        for tensor, kind in KINDS[model].items() if step in steps else ():
            entry = {
                "model": model,
                "tensor": tensor,
                "kind": kind,
                "shape": list(shapes[tensor].shape),
                "step": step,
                "density": density,
                "sha256": hashlib.sha256(vectors[tensor].astype("<f4").tobytes()).hexdigest(),
            }
            recorded.append((entry, vectors[tensor]))
    return recorded


def environment() -> dict[str, str]:
    """Return the versions and the processor on which the bytes depend."""
    packages = ("numpy", "torch", "scipy", "scikit-learn")
    return {
        "processor": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}, 1 thread",
        "python": platform.python_version(),
        "hvd_sparse": hvd_sparse.__version__,
        **{package: metadata.version(package) for package in packages},
    }


def write(folder: Path, recorded: list[tuple[dict, np.ndarray]]) -> None:
    """Write a compressed file for each model, and the manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    written, known = [], set()
    for model in KINDS:
        arrays = {}
        for entry, vector in recorded:
            # Step 1 has no residual yet, so its vectors are the same at all densities.
            if entry["model"] == model and entry["sha256"] not in known:
                known.add(entry["sha256"])
                key = f"{entry['tensor']}-{entry['step']}-{entry['density']:g}"
                arrays[key] = vector
                written.append({**entry, "file": f"{model}.npz", "key": key})
        np.savez_compressed(folder / f"{model}.npz", **arrays)
    manifest = {
        "made_by": "scripts/record_gradients.py",
        "made_with": environment(),
        "vectors": written,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{len(written)} vectors, {size / 2**20:.2f} MiB, in {folder}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    folder = ROOT / "tests" / "fixtures" / "gradients"
    told = "folder to write (default: tests/fixtures/gradients)"
    parser.add_argument("--output", type=Path, default=folder, help=told)
    told = "densities, each with a training of every model (default: 0.001 0.01)"
    parser.add_argument("--densities", type=float, nargs="+", default=[0.001, 0.01], help=told)
    told = "recorded steps, counted from 1 (default: 1 20 100 300)"
    parser.add_argument("--steps", type=int, nargs="+", default=[1, 20, 100, 300], help=told)
    options = parser.parse_args()
    recorded = [
        each
        for model in KINDS
        for density in options.densities
        for each in record(model, density, options.steps)
    ]
    write(options.output, recorded)


if __name__ == "__main__":
    main()
