"""Worker: compares every method and exchange with the numpy engine. Argument: the framework."""

from functools import partial

import _method_cases as core
import numpy as np
from _common import SPARSE_ONLY, Cases, caught
from _framework import NAME, fw

hvd = fw.hvd


def made(name, groups, **how):
    """Return the compressor of a case, its reducer, and its buckets. ``reduce.of`` reduces a list
    of gradients in the order of the tensors."""
    variables = fw.make_variables({f"t{i}": shape for i, shape in enumerate(core.SHAPES)})
    params, case = fw.params_of(variables), name.removesuffix(core.IN_A_GROUP)
    compressor = core.compressor_of(fw.Compression, case, params, name=name, **SPARSE_ONLY)
    if NAME == "tensorflow":
        compressor.resolve()
    reduce = fw.Reducer(compressor, variables, groups=groups, **how)
    reduce.of = lambda drawn: list(reduce(dict(zip(variables, drawn))).values())
    buckets = compressor.step.buckets if groups is None else [tuple(range(len(core.SHAPES)))]
    return compressor, reduce, buckets


def method(name):
    # One of Horovod's groups, which is what PyTorch makes of so few entries by itself.
    groups = 1 if NAME == "tensorflow" and name in core.OVER_GROUPS else None
    compressor, reduce, buckets = made(name, groups)
    applied = []
    for step in range(core.STEPS):
        applied += reduce.of([g.astype(np.float32) for g in core.gradients_of(hvd.rank(), step)])
    world = {"rank": hvd.rank(), "size": hvd.size(), "steps": range(core.STEPS), "buckets": buckets}
    expected = core.simulated(compressor, core.gradients_of, average=True, **world)
    core.check_method(compressor, fw.digest_of(applied), expected)


def exchange(name, groups=None):
    compressor, reduce, buckets = made(name, groups, op=hvd.Sum)
    steps, applied, failed = range(core.STEPS + 2), [], {}
    for step in steps:
        if step not in core.FAILING_STEPS:
            applied += reduce.of(core.uneven_gradients_of(hvd.rank(), step))
            continue
        failed[step] = caught(reduce.of, core.broken_gradients_of(hvd.rank(), hvd.size(), step))
        reduce.forget()
    good = [step for step in steps if step not in core.FAILING_STEPS]
    world = {"rank": hvd.rank(), "size": hvd.size(), "steps": good, "buckets": buckets}
    expected = core.simulated(compressor, core.uneven_gradients_of, average=False, **world)
    assert fw.is_usable(name)
    core.check_bits(compressor, fw.digest_of(applied), expected)
    words = ("PeerFailure", f"rank {hvd.size() - 1}: NonFiniteGradient")
    assert all(word in failed[core.NAN_STEP] for word in words), failed
    assert "NonFiniteGradient" in failed[core.BEYOND_STEP], failed


def all_cases():
    alone = [name for name in core.EXCHANGES if NAME == "torch" or name not in core.ONLY_GROUPED]
    cases = Cases(dict.fromkeys(alone, exchange))
    for name in core.GROUPED if NAME == "tensorflow" else ():
        cases[f"{name}{core.IN_A_GROUP}"] = partial(exchange, groups=1)
    if hvd.size() == 2:  # the methods' number of ranks is the exchanges' affair
        cases |= dict.fromkeys([*core.METHODS, *core.BUILT], method)
    return cases


if __name__ == "__main__":
    fw.begin(0)
    fw.run(all_cases())
