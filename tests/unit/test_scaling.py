"""Loss scales, NaN and Inf: what the residual is kept in, and steps that leave no trace."""

import numpy as np
import pytest
import worlds
from unit.steps import FAULTY, SPECS
from worlds import configure

from hvd_sparse.errors import PeerFailure, RankMismatch
from hvd_sparse.step import receiver
from hvd_sparse.step.session import Session
from hvd_sparse.types import TensorSpec

BAD_STEP, STEPS = 3, 7
CONFIGURATIONS = {
    "sparse": configure("ldte_bs", 0.25, telemetry=True),
    "dense steps": configure("topk", 1.0, allow_dense=True),
    "momentum": configure(memory="momentum_correction"),
    "thresholds that are used again": configure("redsync_search", 0.2),
    "tensors that stay dense": configure(min_numel=9),
    "a lossy selector": configure("stc", 0.2),
    "warm-up": configure(
        schedule={"id": "piecewise", "boundaries": [2, 4], "densities": [1.0, 0.5, 0.2]}
    ),
}


def train(session, steps, scales=lambda step: 1.0, spoil=lambda step, given: None):
    results = []
    for step in steps:
        given = worlds.normals(SPECS, session.collective.rank, step)
        given = {key: (g * np.float32(scales(step))).astype(g.dtype) for key, g in given.items()}
        spoil(step, given)
        results.append(session.reduce(given, scales(step)))
    return results


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("tensor", ["t0", "t1", "t2"])
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_step_with_nan_or_inf_is_seen_in_one_tensor_on_all_ranks_and_leaves_no_trace(
    name, tensor, bad
):
    def script(collective):
        def spoil(step, given):
            if step == BAD_STEP and collective.rank == FAULTY:
                given[tensor].flat[2] = bad

        session = Session(CONFIGURATIONS[name], SPECS, collective)
        results = train(session, range(STEPS), spoil=spoil)
        clean = Session(CONFIGURATIONS[name], SPECS, collective)
        steps = [step for step in range(STEPS) if step != BAD_STEP]
        expected = train(clean, steps)
        assert worlds.snapshot(session) == worlds.snapshot(clean)
        assert session.step.stats.nonfinite_steps == 1
        told, wanted = (each.step.stats.report(None) for each in (session, clean))
        assert told["tensors"] == wanted["tensors"] and told["bytes_sent"] > wanted["bytes_sent"]
        seen = results.pop(BAD_STEP)
        assert {key for key, array in seen.items() if not np.isfinite(array).all()} == {tensor}
        return list(map(worlds.bits_of, results)) == list(map(worlds.bits_of, expected))

    assert worlds.run(3, script) == [True] * 3


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_residuals_are_in_unscaled_units_whatever_the_scale_and_its_changes(name):
    scales = [2.0**16, 2.0**16, 2.0**15, 1.0, 2.0**20, 2.0**-3, 2.0**16]

    def script(collective):
        scaled, plain = (Session(CONFIGURATIONS[name], SPECS, collective) for _ in range(2))
        results = train(scaled, range(STEPS), scales.__getitem__)
        expected = train(plain, range(STEPS))
        assert worlds.snapshot(scaled) == worlds.snapshot(plain)
        for scale, result, wanted in zip(scales, results, expected):
            for key in wanted:
                assert (result[key] / np.float32(scale)).tobytes() == wanted[key].tobytes()

    worlds.run(3, script)


@pytest.mark.parametrize("scale", [0.0, -1.0, np.nan, np.inf, 8.0])
def test_another_scale_or_what_is_no_scale_is_refused_on_all_ranks(scale):
    def script(collective):
        session = Session(CONFIGURATIONS["sparse"], SPECS, collective)
        session.reduce(worlds.normals(SPECS, 0), scale if collective.rank == FAULTY else 1.0)

    results = worlds.LocalWorld(2, worlds.TIMEOUT_S).run_all(script)
    assert all(isinstance(result, (PeerFailure, RankMismatch)) for result in results)
    words = "with the same options and loss scale" if scale == 8.0 else "the loss scale is"
    assert words in str(results[FAULTY])


@pytest.mark.parametrize(
    ("dtype", "average", "size", "expected", "looks"),
    [
        ("float16", False, 6e4, np.nan, 2),
        ("bfloat16", False, 6e4, 1.2e5, 0),
        ("float16", True, 4e4, 4e4, 2),
        ("float16", True, 1.0, 1.0, 0),
    ],
)
def test_what_16_bits_cannot_hold_is_nan_on_all_ranks_and_looked_for_only_near_their_limit(
    dtype, average, size, expected, looks, monkeypatch
):
    """Of four entries of 40000 the average is in range, and the bound of 80000 is not."""
    seen, own, spec = [], receiver.stays_finite, TensorSpec("half", (8, 2), dtype)
    monkeypatch.setattr(receiver, "stays_finite", lambda *given: seen.append(1) or own(*given))

    def script(collective):
        session = Session(configure(density=0.25), [spec], collective, average=average)
        result = session.reduce({"half": np.full((8, 2), size, np.float32)})
        return result["half"], worlds.residuals(session)["half"]

    for result, kept in worlds.run(2, script):
        assert np.isnan(result).all() if np.isnan(expected) else (result.max() == expected)
        assert kept.max() == (0 if np.isnan(expected) else np.float32(size))
    assert len(seen) == looks
