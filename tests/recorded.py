"""Real accumulated gradients, recorded by ``scripts/record_gradients.py``; plain numpy."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent / "fixtures" / "gradients"


@dataclass(frozen=True, eq=False)
class Recorded:
    """Gradient + residual of one tensor at one step of a training with exact top-k and error
    feedback."""

    name: str
    step: int
    density: float
    values: np.ndarray

    def __str__(self) -> str:
        return f"{self.name}-{self.step}-{self.density:g}"


@functools.cache
def recorded() -> tuple[Recorded, ...]:
    entries = json.loads((FOLDER / "manifest.json").read_text(encoding="utf-8"))["vectors"]
    arrays = {}
    for file in {entry["file"] for entry in entries}:
        with np.load(FOLDER / file) as archive:
            arrays.update({(file, key): archive[key] for key in archive.files})
    return tuple(_recorded(entry, arrays[entry["file"], entry["key"]]) for entry in entries)


def _recorded(entry: dict, values: np.ndarray) -> Recorded:
    values.flags.writeable = False
    name = f"{entry['model']}-{entry['tensor']}"
    return Recorded(name, entry["step"], entry["density"], values)
