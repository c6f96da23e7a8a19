"""Worker: every exchange through a framework, with steps that fail, against the numpy core in a
world of threads.  Argument: the framework."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from _common import SPARSE_ONLY, Cases, caught
from _exchange_cases import (
    BEYOND_STEP,
    EXCHANGES,
    FAILING_STEPS,
    GROUPED,
    IN_A_GROUP,
    NAN_STEP,
    ONLY_GROUPED,
    SHAPES,
    STEPS,
    broken_gradients_of,
    digest_of,
    gradients_of,
    simulate,
    spoilt,
)
from _framework import NAME, fw

hvd = fw.hvd


def same_as_in_threads(name: str, groups: int | None = None) -> dict[str, Any]:
    variables = fw.make_variables({f"t{i}": shape for i, shape in enumerate(SHAPES)})
    options = {**EXCHANGES[name.removesuffix(IN_A_GROUP)], **SPARSE_ONLY}
    compressor = fw.Compression.build(fw.params_of(variables), name=name, **options)
    reduce = fw.Reducer(compressor, variables, op=hvd.Sum, groups=groups)
    applied: list[np.ndarray] = []
    failed: dict[int, str] = {}
    for step in range(STEPS):
        if step not in FAILING_STEPS:
            applied += reduce(dict(zip(variables, gradients_of(hvd.rank(), step)))).values()
            continue
        drawn = broken_gradients_of(hvd.rank(), hvd.size(), step)
        results: list[np.ndarray] = []
        said = caught(lambda: results.extend(reduce(dict(zip(variables, drawn))).values()))  # noqa: B023
        failed[step] = spoilt(results) if results else said
        reduce.forget()
    tensors = compressor.state_dict()["tensors"]
    kept = [np.asarray(tensors[s.key]["arrays"]["residual"]) for s in compressor.step.specs]
    buckets = compressor.step.buckets if groups is None else [tuple(range(len(SHAPES)))]
    configuration, specs = compressor.configuration, compressor.step.specs
    expected = simulate(configuration, specs, buckets, hvd.size(), hvd.rank())
    compressor.close()
    return {
        "applied": digest_of(applied),
        "kept": digest_of(kept),
        "expected": expected,
        "raised": failed[NAN_STEP],
        "beyond_range": failed[BEYOND_STEP],
        "is_usable": fw.is_usable(name),
    }


if __name__ == "__main__":
    fw.begin(0)
    alone = [name for name in EXCHANGES if NAME == "torch" or name not in ONLY_GROUPED]
    cases = Cases(dict.fromkeys(alone, same_as_in_threads))
    for name in GROUPED if NAME == "tensorflow" else ():
        cases[f"{name}{IN_A_GROUP}"] = partial(same_as_in_threads, groups=1)
    fw.run(cases)
