"""Worker: how often a step of one tensor goes over gradient and residual, and how much fresh memory
it takes.

    python worker.py LIBRARY '"numba"'      or an engine with options, as JSON

Prints a JSON object: for every case of ``CASES`` and every mutant of the engine, what was measured,
step by step.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from passes.mutants import MUTANTS
from passes.page_trap import PageTrap, fresh_bytes

from benchmarks._gradients import Gradients
from hvd_sparse.configuration import Configuration
from hvd_sparse.core.kernels.engines import resolve_engine
from hvd_sparse.core.step.pipeline import Pipeline
from hvd_sparse.core.step.tensor_state import TensorState
from hvd_sparse.exchanges.members import Outgoing
from hvd_sparse.types import TensorSpec

NUMEL, DENSITY = 1_100_000, 4e-5
"""So few entries that the pages which they are in do not add up to a pass; arrays so large that the
kernels write past the caches."""
WARM, MEASURED = 30, 4
"""Steps: until the aim has settled, and looked at, of which every other one with the trap."""
CASES = {
    f"{selector}, rollback={rollback}": (selector, rollback)
    for selector in ("topk", "ldte_bs")
    for rollback in (False, True)
}


class Measurement:
    """One tensor, step by step."""

    def __init__(self, library: Path, kernels: Any, selector: str, rollback: bool) -> None:
        configuration = Configuration.create(
            selector={"id": selector, "density": DENSITY}, rollback=rollback
        )
        self.pipeline = Pipeline(configuration, kernels)
        self.state = TensorState(TensorSpec("x", (NUMEL,), "float32"), configuration)
        self.gradients = Gradients.draw(NUMEL, seed=1)
        self.state.memory.load({"residual": self.gradients.steady_residual(DENSITY, seed=2)})
        self.gradient = np.empty(NUMEL, np.float32)
        residual = self.state.memory.residual
        residuals = {
            "residual": residual.old,
            **({"second": residual.new} if residual.can_roll_back else {}),
        }
        self.trap = PageTrap(library, {"gradient": self.gradient, **residuals})

    def step(self) -> Outgoing:
        outgoing = self.pipeline.send(self.state, self.gradient, 0, 2, dense=False)
        self.state.commit()
        return outgoing

    def run(self) -> list[dict[str, float]]:
        """Of every measured step: passes by what they do, and fresh memory over that of the
        gradient."""
        measured: list[dict[str, float]] = []
        for number in range(WARM + MEASURED):
            self.gradient[:] = self.gradients.at(number)
            if number < WARM:
                self.step()
            elif number % 2 == 0:
                fresh = fresh_bytes(self.step) / self.gradient.nbytes
            else:
                measured.append({**self.trapped(), "fresh memory": fresh})
        return measured

    def trapped(self) -> dict[str, float]:
        outgoing: list[Outgoing] = []
        passes = self.trap.passes(lambda: outgoing.append(self.step()))
        gradient = passes.pop("gradient")
        return {
            "gradient read": gradient["reads"],
            "gradient written": gradient["writes"],
            "residual read": sum(residual["reads"] for residual in passes.values()),
            "residual written": sum(residual["writes"] for residual in passes.values()),
            "said to be one pass": float(outgoing[0].found.is_one_pass),
        }


def main(library: Path, engine: Any) -> dict[str, Any]:
    kernels = resolve_engine(engine)
    measured = {
        case: Measurement(library, kernels, *options).run() for case, options in CASES.items()
    }
    for mutant, mutate in MUTANTS.items():
        measured[mutant] = Measurement(library, mutate(kernels), "topk", False).run()
    return measured


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), json.loads(sys.argv[2]))))
