"""Worker: how often one step of one tensor goes over gradient and residual, and how much fresh memory it takes.

    python worker.py LIBRARY '{"engine": "numpy", "selector": "topk", "density": 1e-4, "numel": 1000000, ...}'

Prints, as JSON, the passes of every measured step and the fresh memory of steps that were not trapped.
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
from hvd_sparse.core.configuration import Configuration
from hvd_sparse.core.pipeline import Pipeline, TensorState
from hvd_sparse.engines import resolve_engine
from hvd_sparse.types import TensorSpec

WARM, MEASURED = 12, 4


def main(library: Path, case: dict[str, Any]) -> dict[str, Any]:
    numel, density = case["numel"], case["density"]
    configuration = Configuration.create(
        selector={"id": case["selector"], "density": density}, rollback=case["rollback"], engine=case["engine"]
    )
    pipeline = Pipeline(configuration, MUTANTS[case["mutant"]](resolve_engine(case["engine"])))
    state = TensorState(TensorSpec("x", (numel,), "float32"), configuration)
    gradients = Gradients.draw(numel, seed=1)
    state.memory.load({"residual": gradients.steady_residual(density, seed=2)})
    gradient = np.empty(numel, np.float32)
    residual = state.memory.residual
    arrays = {"gradient": gradient, "residual": residual.old}
    if residual.can_roll_back:
        arrays["second"] = residual.new
    trap = PageTrap(library, arrays)
    measured: dict[str, list[Any]] = {"passes": [], "fresh": []}

    def step() -> None:
        pipeline.send(state, gradient, 0, 2, dense=False)
        state.commit()

    for number in range(WARM + 2 * MEASURED):
        gradient[:] = gradients.at(number)
        if number < WARM:
            step()
        elif number % 2:
            measured["passes"].append(trap.passes(step))
        else:
            measured["fresh"].append(fresh_bytes(step) / gradient.nbytes)
    return measured


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), json.loads(sys.argv[2]))))
