#!/usr/bin/env python3
"""Record real accumulated gradients for the tests: small models, trained under error feedback by
exact top-k.

    python scripts/record_gradients.py              writes tests/fixtures/gradients/

Needs torch, scikit-learn and rich.  The same bytes come out of every run with the same versions on
the same kind of processor; with another Python the character corpus is another, and with another
torch the sums round differently. The manifest says what the committed files were made with; tests
need the files only.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks._models import small_tasks  # noqa: E402
from benchmarks._streams import Stream, environment, watch  # noqa: E402

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


def record(
    model: str, density: float, steps: list[int], progress: Progress
) -> list[tuple[dict, np.ndarray]]:
    """Manifest entries and vectors of one training."""
    stream = Stream(small_tasks()[model], density, max(steps))
    recorded = []
    for seen in watch(stream, progress, f"{model}, density {density:g}"):
        for tensor, kind in KINDS[model].items() if seen.step in steps else ():
            vector = seen.accumulated[tensor]
            entry = {
                "model": model,
                "tensor": tensor,
                "kind": kind,
                "shape": list(stream.specs[tensor].shape),
                "step": seen.step,
                "density": density,
                "sha256": hashlib.sha256(vector.astype("<f4").tobytes()).hexdigest(),
            }
            recorded.append((entry, vector))
    return recorded


def write(folder: Path, recorded: list[tuple[dict, np.ndarray]]) -> int:
    """One compressed file a model, and the manifest; the bytes written."""
    folder.mkdir(parents=True, exist_ok=True)
    written, known = [], set()
    for model in KINDS:
        arrays = {}
        for entry, vector in recorded:
            if (
                entry["model"] == model and entry["sha256"] not in known
            ):  # step 1 knows no density: no residual yet
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
    return sum(path.stat().st_size for path in folder.iterdir())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "fixtures" / "gradients")
    parser.add_argument("--densities", type=float, nargs="+", default=[0.001, 0.01])
    parser.add_argument(
        "--steps", type=int, nargs="+", default=[1, 20, 100, 300], help="recorded steps, from 1"
    )
    options = parser.parse_args()
    console = Console(stderr=True)
    recorded = []
    with Progress(
        *Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    ) as bars:
        for model in KINDS:
            for density in options.densities:
                recorded += record(model, density, options.steps, bars)
    size = write(options.output, recorded)
    console.print(f"{len(recorded)} vectors, {size / 2**20:.2f} MiB, in {options.output}")


if __name__ == "__main__":
    main()
