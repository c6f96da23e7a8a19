"""DGC's sample over what the fused pass took along: the same entries as from the whole vector."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import worlds
from distributions import draw

from hvd_sparse.configuration import Configuration
from hvd_sparse.kernels import reference
from hvd_sparse.kernels.contract import Kernels
from hvd_sparse.registry import CODECS, EXCHANGES, MEMORIES
from hvd_sparse.selectors.dgc_sampled import DgcSampled
from hvd_sparse.step.pipeline import Pipeline
from hvd_sparse.step.tensor_state import TensorState
from hvd_sparse.types import TensorSpec

STEPS = 40
MEMORIES_OF = {
    "error_feedback": {},
    "momentum_correction": {"momentum": 0.9},
}


@dataclass(frozen=True)
class Unaimed(DgcSampled):
    """As it was: every step looks at the whole vector."""

    def aim(self, numel, warm, memo):
        return None


def trained(kind, memory, numel, density, distribution, kernels=reference):
    selector = kind(density=density)
    configuration = Configuration(
        selector=selector,
        memory=MEMORIES.create(memory, **MEMORIES_OF[memory]),
        codec=CODECS.create("index_value"),
        exchange=EXCHANGES.create("allgather"),
        schedule=None,
    )
    pipeline = Pipeline(configuration, kernels)
    state = TensorState(TensorSpec("w", (numel,), "float32"), configuration)
    frames, founds = [], []
    for step in range(STEPS):
        size = 10.0 if step == STEPS // 2 else 1.0  # a jump, which no aim foresees
        gradient = (size * draw(distribution, numel, seed=step)).astype(np.float32)
        sent = pipeline.send(state, gradient, 1, 2, dense=False)
        frames.append(sent.frame.tobytes())
        founds.append(sent.found)
        state.commit()
    return frames, founds


@pytest.mark.parametrize("memory", MEMORIES_OF)
@pytest.mark.parametrize(("numel", "density"), [(20_000, 0.01), (3_000, 0.05), (400, 0.1)])
@pytest.mark.parametrize("distribution", ["laplace", "normal", "lognormal"])
def test_an_aim_changes_no_entry_and_spares_the_pass_in_most_steps(
    memory, numel, density, distribution
):
    frames, founds = trained(DgcSampled, memory, numel, density, distribution)
    expected, plain = trained(Unaimed, memory, numel, density, distribution)
    assert frames == expected
    assert [each.is_fallback for each in founds] == [each.is_fallback for each in plain]
    caught = [each.is_one_pass for each in founds]
    assert not any(each.is_one_pass for each in plain) and not caught[0]
    assert sum(caught) > STEPS / 2


def test_the_sample_is_seldom_read():
    """Where its top was taken along, nothing else of it matters."""
    starts = []

    def sample_magnitudes(x, start, stride):
        starts.append(start)
        return reference.sample_magnitudes(x, start, stride)

    own = type("Noted", (Kernels,), {"sample_magnitudes": staticmethod(sample_magnitudes)})()
    _, founds = trained(DgcSampled, "error_feedback", 20_000, 0.01, "laplace", own)
    aimed = sum(found.is_one_pass for found in founds)
    read = len(starts) - (STEPS - aimed)
    assert aimed > STEPS / 2 and read < aimed / 2


def test_few_non_zeros_are_all_sent_and_zeros_never():
    configuration = Configuration(
        selector=DgcSampled(density=0.1),
        memory=MEMORIES.create("error_feedback"),
        codec=CODECS.create("index_value"),
        exchange=EXCHANGES.create("allgather"),
        schedule=None,
    )
    pipeline, (spec,) = Pipeline(configuration, reference), worlds.tensors((100,))
    state = TensorState(spec, configuration)
    for count in (40, 3, 0, 10):
        gradient = np.zeros(100, np.float32)
        gradient[:count] = np.arange(1, count + 1)
        state.memory.load({"residual": np.zeros(100, np.float32)})
        found = pipeline.send(state, gradient, 0, 1, dense=False).found
        assert found.selection.count == min(count, 10)
        state.commit()
