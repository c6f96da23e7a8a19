"""Worker: compares every method and exchange with the numpy engine. Argument: the framework."""

from functools import partial

import numpy as np
from _common import SPARSE_ONLY, Cases, caught
from _framework import NAME, fw
from _method_cases import (
    BEYOND_STEP,
    BUILT,
    EXCHANGES,
    FAILING_STEPS,
    GROUPED,
    IN_A_GROUP,
    METHODS,
    NAN_STEP,
    ONLY_GROUPED,
    OVER_GROUPS,
    SHAPES,
    STEPS,
    broken_gradients_of,
    check_bits,
    check_method,
    compressor_of,
    gradients_of,
    simulated,
    uneven_gradients_of,
)

hvd = fw.hvd


def made(name, groups, **how):
    """Return the compressor of a case, its reducer, and its buckets. ``reduce.of`` reduces a list
    of gradients in the order of the tensors."""
    variables = fw.make_variables({f"t{i}": shape for i, shape in enumerate(SHAPES)})
    params, case = fw.params_of(variables), name.removesuffix(IN_A_GROUP)
    compressor = compressor_of(fw.Compression, case, params, name=name, **SPARSE_ONLY)
    if NAME == "tensorflow":
        compressor.resolve()
    reduce = fw.Reducer(compressor, variables, groups=groups, **how)
    reduce.of = lambda drawn: list(reduce(dict(zip(variables, drawn))).values())
    buckets = compressor.step.buckets if groups is None else [tuple(range(len(SHAPES)))]
    return compressor, reduce, buckets


def method(name):
    # One of Horovod's groups, which is what PyTorch makes of so few entries by itself.
    groups = 1 if NAME == "tensorflow" and name in OVER_GROUPS else None
    compressor, reduce, buckets = made(name, groups)
    applied = []
    for step in range(STEPS):
        applied += reduce.of([g.astype(np.float32) for g in gradients_of(hvd.rank(), step)])
    world = {"rank": hvd.rank(), "size": hvd.size(), "steps": range(STEPS), "buckets": buckets}
    expected = simulated(compressor, gradients_of, average=True, **world)
    check_method(compressor, fw.digest_of(applied), expected)


def exchange(name, groups=None):
    compressor, reduce, buckets = made(name, groups, op=hvd.Sum)
    steps, applied, failed = range(STEPS + 2), [], {}
    for step in steps:
        if step not in FAILING_STEPS:
            applied += reduce.of(uneven_gradients_of(hvd.rank(), step))
            continue
        failed[step] = caught(reduce.of, broken_gradients_of(hvd.rank(), hvd.size(), step))
        reduce.forget()
    good = [step for step in steps if step not in FAILING_STEPS]
    world = {"rank": hvd.rank(), "size": hvd.size(), "steps": good, "buckets": buckets}
    expected = simulated(compressor, uneven_gradients_of, average=False, **world)
    assert fw.is_usable(name)
    check_bits(compressor, fw.digest_of(applied), expected)
    assert expected["lost"] == 0 or "published" in name, expected["lost"]
    words = ("PeerFailure", f"rank {hvd.size() - 1}: NonFiniteGradient")
    assert all(word in failed[NAN_STEP] for word in words), failed
    assert "NonFiniteGradient" in failed[BEYOND_STEP], failed


def all_cases():
    alone = [name for name in EXCHANGES if NAME == "torch" or name not in ONLY_GROUPED]
    cases = Cases(dict.fromkeys(alone, exchange))
    for name in GROUPED if NAME == "tensorflow" else ():
        cases[f"{name}{IN_A_GROUP}"] = partial(exchange, groups=1)
    if hvd.size() == 2:  # the methods' number of ranks is the exchanges' affair
        cases |= dict.fromkeys([*METHODS, *BUILT], method)
    return cases


if __name__ == "__main__":
    fw.begin(0)
    fw.run(all_cases())
