"""Worker, under mpirun: every method through a framework, against the numpy core over mpi4py on the
same gradients.  Argument: the framework."""

from __future__ import annotations

from typing import Any

import numpy as np
from _common import SPARSE_ONLY, Cases
from _framework import NAME, fw
from _method_cases import (
    BUILT,
    METHODS,
    OVER_GROUPS,
    SHAPES,
    STEPS,
    compressor_of,
    found,
    gradients_of,
    session_beside,
)


def same_as_the_core(name: str) -> dict[str, Any]:
    variables = fw.make_variables({f"t{i}": shape for i, shape in enumerate(SHAPES)})
    params = fw.params_of(variables)
    compressor = compressor_of(fw.Compression, name, params, name=name, **SPARSE_ONLY)
    if NAME == "tensorflow":
        compressor.resolve()
    # One of Horovod's groups, which is what PyTorch makes of so few entries by itself.
    groups = {"groups": 1} if NAME == "tensorflow" and name in OVER_GROUPS else {}
    reduce = fw.Reducer(compressor, variables, **groups)
    session = session_beside(compressor, buckets=[(0, 1, 2)] if groups else None)
    keys = [spec.key for spec in compressor.step.specs]
    differences, applied = 0, []
    for step in range(STEPS):
        drawn = [each.astype(np.float32) for each in gradients_of(fw.hvd.rank(), step)]
        expected = session.reduce(dict(zip(keys, drawn)))
        results = list(reduce(dict(zip(variables, drawn))).values())
        applied += results
        differences += sum(int((expected[k] != each).sum()) for k, each in zip(keys, results))
    return found(compressor, differences, fw.digest_of(applied))


if __name__ == "__main__":
    fw.begin(0)
    fw.run(Cases(dict.fromkeys([*METHODS, *BUILT], same_as_the_core)))
