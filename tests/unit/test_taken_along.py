"""What the pass that adds the gradient took along selects the same entries as the whole vector."""

from dataclasses import replace

import numpy as np
import pytest
from conformance.pass_checks import CountingKernels
from distributions import draw

from hvd_sparse.configuration import Configuration
from hvd_sparse.registry import SELECTORS
from hvd_sparse.step.pipeline import Pipeline
from hvd_sparse.step.tensor_state import TensorState
from hvd_sparse.types import TensorSpec

STEPS = 36
NUMEL = 5_000
DENSITY = 0.02
CASES = {
    "radix_select": {},
    "dgc_sampled": {},
    "stc": {},
    "redsync_trimmed": {},
    "redsync_search": {},
    "reused_threshold": {"period": 8},
    "fixed_threshold": {"threshold": 4.0},
    "fixed_threshold, signs": {"threshold": 4.0, "signs_only": True},
    "fixed_threshold, cut": {"threshold": 0.1, "max_density": 0.05},
    "fixed_threshold, signs, cut": {"threshold": 0.1, "max_density": 0.05, "signs_only": True},
}
STEADY = 0.6
"""Share of the steps, at least, that need nothing beside their first pass; less where a momentum
makes thresholds rise and fall, or a threshold is searched for now and then."""


def created(case, *, aims):
    id = case.split(",")[0]
    kind = SELECTORS.get(id)
    if not aims:
        kind = type("Unaimed", (kind,), {"aim": lambda *_: None})
    options = CASES[case]
    return kind(**options) if "threshold" in options else kind(density=DENSITY, **options)


def trained(case, distribution, memory, *, aims=True, on_device=False):
    plain = Configuration.create(selector={"id": "topk", "density": DENSITY}, memory=memory)
    configuration = replace(plain, selector=created(case, aims=aims), schedule=None)
    kernels = CountingKernels(NUMEL)
    pipeline = Pipeline(configuration, kernels)
    pipeline.rank, pipeline.world_size = 1, 2
    state = TensorState(TensorSpec("w", (NUMEL,), "float32"), configuration)
    state.is_on_device = on_device
    frames, residuals, founds, questions = [], [], [], []
    for step in range(STEPS):
        kernels.asked.clear()
        size = 10.0 if step == STEPS // 2 else 1.0  # a jump, which no aim foresees
        gradient = (size * draw(distribution, NUMEL, seed=step)).astype(np.float32)
        sent = pipeline.send(state, gradient, dense=False)
        if sent.surplus is not None:  # with the bucket's sums
            vector, entries = sent.surplus
            vector[entries.indices] = entries.values
        frames.append(sent.frame.tobytes())
        founds.append(sent.found)
        questions.append(kernels.asked[1:])
        state.commit()
        residuals.append(state.memory.arrays()["residual"].tobytes())
    return frames, residuals, founds, questions


@pytest.mark.parametrize("distribution", ["laplace", "normal", "lognormal"])
@pytest.mark.parametrize("memory", ["error_feedback", "momentum_correction"])
@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_an_aim_changes_no_bit_and_asks_less(case, memory, distribution, on_device):
    aimed = trained(case, distribution, memory, on_device=on_device)
    frames, residuals, founds, questions = aimed
    expected, kept, plain, without = trained(case, distribution, memory, aims=False)
    assert frames == expected
    assert residuals == kept
    assert [each.is_fallback for each in founds] == [each.is_fallback for each in plain]
    assert not any(each.is_one_pass for each in plain)
    # Where nothing reaches a fixed threshold the largest entry has to be looked for; behind an aim
    # that was missed, the moments that a pass without one brings.
    spare = 1 if case in ("fixed_threshold", "fixed_threshold, cut", "dgc_sampled") else 0
    assert all(len(own) <= len(all_) + spare for own, all_ in zip(questions, without))
    assert sum(map(len, questions)) < 0.7 * sum(map(len, without))
    assert [each.is_one_pass for each in founds] == [not asked for asked in questions]
    if memory == "error_feedback":
        assert sum(each.is_one_pass for each in founds) >= STEADY * STEPS
