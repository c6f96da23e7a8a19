"""One tensor's walk through a step: warm thresholds, and frames that are not this tensor's."""

from __future__ import annotations

import numpy as np
import pytest
import worlds
from conformance.codec_checks import selection_of
from distributions import draw
from worlds import configure

from hvd_sparse.errors import CorruptPayload
from hvd_sparse.kernels import reference
from hvd_sparse.registry import CODECS
from hvd_sparse.step.pipeline import Pipeline
from hvd_sparse.step.receiver import Sum, write_sum
from hvd_sparse.step.tensor_state import TensorState

(SPEC,) = worlds.tensors((50, 20))
CODEC = CODECS.create("index_value")


def pipeline_and_state(**options):
    configuration = configure("ldte_bs", 0.01, **options)
    return Pipeline(configuration, reference), TensorState(SPEC, configuration)


def test_the_threshold_of_a_good_step_is_where_the_next_search_begins():
    pipeline, state = pipeline_and_state()
    first = pipeline.send(state, draw("lognormal", 1_000), 0, 1, dense=False)
    state.commit()
    assert (state.threshold, state.steps) == (first.found.threshold, 1)
    state.memory.load({"residual": np.zeros(1_000, np.float32)})
    again = pipeline.send(state, draw("lognormal", 1_000), 0, 1, dense=False)
    assert again.found.is_one_pass and again.found.passes == 0


def test_the_threshold_of_a_failed_step_is_forgotten():
    pipeline, state = pipeline_and_state()
    first = pipeline.send(state, draw("normal", 1_000), 0, 1, dense=False)
    state.commit()
    failed = pipeline.send(state, 1000 * draw("normal", 1_000), 0, 1, dense=False)
    state.roll_back()
    assert failed.found.threshold != first.found.threshold
    assert (state.threshold, state.steps) == (first.found.threshold, 1)
    state.commit()
    assert state.threshold == first.found.threshold


def test_a_dense_step_leaves_no_threshold_for_the_empty_residual_behind_it():
    pipeline, state = pipeline_and_state()
    pipeline.send(state, draw("normal", 1_000), 0, 1, dense=False)
    state.commit()
    outgoing = pipeline.send(state, draw("normal", 1_000), 0, 1, dense=True)
    state.commit()
    assert (state.threshold, outgoing.found, outgoing.frame, outgoing.entries) == (
        None,
        None,
        None,
        1_000,
    )


@pytest.mark.parametrize("telemetry", [True, False])
def test_the_norm_is_that_of_what_stays_and_only_on_demand(telemetry):
    pipeline, state = pipeline_and_state(telemetry=telemetry)
    outgoing = pipeline.send(state, draw("normal", 1_000), 0, 1, dense=False)
    state.commit()
    residual = state.memory.arrays()["residual"].astype(float)
    assert outgoing.norm == (
        pytest.approx(np.sqrt((residual**2).sum()), rel=1e-5) if telemetry else 0.0
    )


@pytest.mark.parametrize(
    ("numel", "dtype", "words"),
    [
        (999, "float32", "a payload for it is for 999 of float32"),
        (1_001, "float32", "a payload for it is for 1001 of float32"),
        (1_000, "float64", "a payload for it is for 1000 of float64"),
    ],
)
def test_a_payload_of_another_tensor_is_refused_by_name(numel, dtype, words):
    frame = CODEC.encode(selection_of((1, 2), numel, dtype))
    given = Sum(SPEC, CODEC, [(slice(0, 1_000), frame)], np.zeros(1_000, np.float32), 1.0)
    with pytest.raises(CorruptPayload, match=f"tensor 't0' has 1000 entries of float32; {words}"):
        write_sum(given, reference)
