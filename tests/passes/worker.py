"""Worker: counts how often a step of one tensor reads and writes gradient and residual, and how
much new memory it uses. Prints the counts of each step as JSON, for every case and every mutant of
the engine.

    python worker.py LIBRARY '"numba"'      or an engine with options, as JSON
"""

import itertools
import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np
from conformance.changes import Wrapped
from passes.page_trap import PageTrap, fresh_bytes

from benchmarks._gradients import Gradients
from hvd_sparse.configuration import Configuration
from hvd_sparse.kernels.engines import resolve_engine
from hvd_sparse.step.pipeline import Pipeline
from hvd_sparse.step.tensor_state import TensorState
from hvd_sparse.types import TensorSpec

NUMEL, DENSITY = 1_100_000, 4e-5
"""The density is so low that the pages with sent entries are far fewer than those of a pass. The
arrays are so large that the kernels use non-temporal stores."""
WARM, MEASURED = 30, 4
"""Number of steps before the measurement, until thresholds hardly change, and of measured steps.
Every other measured step runs with the trap."""
SECOND = "second "
CASES = {
    f"{selector}, rollback={rollback}": (selector, rollback)
    for selector, rollback in (
        *itertools.product(("topk", "ldte_bs"), (False, True)),
        ("radix_select", False),
        ("stc", True),
    )
}


DIRECTED = {"momentum_correction": ("velocity",), "adam_correction": ("mean", "square")}


def mutant(kernels, changed, extra):
    def call(name, kernel, arguments):
        if name == changed:
            extra(*arguments)
        return kernel(*arguments)

    return Wrapped(kernels, call)


TAKE = "accumulate_and_take"
MUTANTS = {
    "looks at the gradient first": ("gradient read", TAKE, lambda new, *_: new.max()),
    "looks at the residual first": ("residual read", TAKE, lambda new, old, *_: old.max()),
    "adds zeros first": ("residual written", TAKE, lambda new, old, *_: old.__iadd__(0)),
    "looks at the new residual": (
        "residual read", "trim", lambda taken, count, out: None if out is None else out.max()
    ),
    "copies the gradient": ("fresh memory", TAKE, lambda new, *_: new.copy()),
}  # fmt: skip
"""By name: the count that shows it, the kernel, and what is done before it."""


class Measurement:
    def __init__(self, library, kernels, selector, rollback, memory=None):
        options = {} if memory is None else {"memory": memory}
        options["selector"] = {"id": selector, "density": DENSITY}
        configuration = Configuration.create(rollback=rollback, **options)
        self.pipeline = Pipeline(configuration, kernels)
        self.pipeline.world_size = 2
        self.state = TensorState(TensorSpec("x", (NUMEL,), "float32"), configuration)
        self.gradients = Gradients.draw(NUMEL, seed=1)
        arrays = self.state.memory.arrays()
        steady = self.gradients.steady_residual(DENSITY, seed=2)
        self.state.memory.load({**arrays, "residual": steady})
        self.gradient = np.empty(NUMEL, np.float32)
        names = DIRECTED.get(memory or "", ())
        residual = self.state.memory.residual
        watched = {"gradient": self.gradient, **_both("residual", residual)}
        for name in names:
            watched |= _both(name, getattr(self.state.memory, name))
        self.trap = PageTrap(library, watched)

    def step(self):
        outgoing = self.pipeline.send(self.state, self.gradient, dense=False)
        self.state.commit()
        return outgoing

    def run(self):
        measured = []
        for number in range(WARM + MEASURED):
            self.gradient[:] = self.gradients.at(number)
            if number < WARM:
                self.step()
            elif number % 2 == 0:
                fresh = fresh_bytes(self.step) / self.gradient.nbytes
            else:
                measured.append({**self.trapped(), "fresh memory": fresh})
        return measured

    def trapped(self):
        outgoing = []
        passes = self.trap.passes(lambda: outgoing.append(self.step()))
        counts = Counter()
        for name, times in passes.items():
            vector = name.removeprefix(SECOND)
            counts[f"{vector} read"] += times["reads"]
            counts[f"{vector} written"] += times["writes"]
        return {**counts, "said to be one pass": float(outgoing[0].found.is_one_pass)}


def _both(name, buffer):
    second = {SECOND + name: buffer.new} if buffer.can_roll_back else {}
    return {name: buffer.old, **second}


def main(library, engine):
    kernels = resolve_engine(engine)
    measured = {}
    for case, options in CASES.items():
        measured[case] = Measurement(library, kernels, *options).run()
    for memory in DIRECTED:
        measured[memory] = Measurement(library, kernels, "ldte_bs", True, memory).run()
    for name, (_, *change) in MUTANTS.items():
        measured[name] = Measurement(library, mutant(kernels, *change), "topk", False).run()
    return measured


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), json.loads(sys.argv[2]))))
