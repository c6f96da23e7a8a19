"""Bad input is refused by name: the tensor, the value, the remedy."""

import math

import cases
import numpy as np
import pytest
import worlds

from hvd_sparse.errors import InvalidOption, PeerFailure, UnsupportedInput
from hvd_sparse.frontend.naming import check_keys
from hvd_sparse.registry import EXCHANGES, MEMORIES, SCHEDULES, SELECTORS
from hvd_sparse.selectors.contract import DensitySelector
from hvd_sparse.step.session import Session
from hvd_sparse.types import INDEX_LIMIT, TensorSpec

NO_DENSITIES = [0, 0.0, -1, -0.5, 1.5, 2, math.nan, math.inf, -math.inf, True, False]
NO_DENSITIES += ["x", "0.1", None, 1j, [0.1]]


@pytest.mark.parametrize(
    "id", [id for id in SELECTORS if issubclass(SELECTORS.get(id), DensitySelector)]
)
def test_a_density_outside_zero_to_one_is_refused_with_an_example(id):
    for density in NO_DENSITIES:
        with pytest.raises(InvalidOption) as caught:
            SELECTORS.create(id, density=density)
        assert f"density of {SELECTORS.get(id).__name__} is {density!r}" in str(caught.value)
        assert "in (0, 1]; for example, 0.001 sends one entry in a thousand" in str(caught.value)
        with pytest.raises(InvalidOption, match=r"in \(0, 1\]"):
            SCHEDULES.create("constant", value=density)


@pytest.mark.parametrize("density", [0.5, np.float32(0.5), np.float64(0.5), 1])
def test_numbers_of_any_kind_are_densities(density):
    assert SELECTORS.create("topk", density=density).density == float(density)


WRONG_OPTIONS = {
    ("ldte", "cap"): [0.5, math.nan, math.inf, "much"],
    ("ldte_bs", "search"): ["newton", []],
    ("ldte_bs", "tolerance"): [
        *[(0.0, 1.3), (1.1, 1.3), (0.8, 0.9), (0.8,), (0.8, 1.0, 1.3), (0.8, math.nan)],
        *[(0.8, math.inf), ("low", "high"), 0.2],
    ],
    ("ldte_bs", "max_passes"): [0, 2.5, True],
    ("ldte_bs", "warm_start"): ["no"],
    ("gaussian_k", "variant"): ["mine", []],
    ("gaussian_k", "cap"): [0.5],
    ("dgc_sampled", "sample_density"): [0],
    ("dgc_sampled", "bounds"): [(0.8,), (1.0, 1.3), 1.3],
    ("dgc_sampled", "max_rounds"): [-1],
    ("dgc_sampled", "seed"): [0.5],
    ("redsync_trimmed", "step"): [1, "small"],
    ("redsync_search", "reuse_steps"): [-1],
    ("redsync_search", "max_passes"): [True],
    ("sidco", "distribution"): ["normal"],
    ("sidco", "stages"): [0, 1.5],
    ("sidco", "first_ratio"): [1.0],
    ("sidco", "adapt_every"): [-1],
    ("sidco", "cap"): [math.inf],
    ("random_k", "seed"): [-1],
    ("random_k", "shared_seed"): [1],
    ("chunked", "chunk_length"): [0, "long"],
    ("adacomp", "bin_length"): [0, 2.5],
    ("terngrad", "clip"): [0, "some"],
    ("fixed_threshold", "threshold"): [0, math.nan],
    ("fixed_threshold", "max_density"): [0],
    ("fixed_threshold", "signs_only"): ["yes"],
}
WRONG_MEMORIES = {
    ("momentum_correction", "momentum"): [1.0, "much", 10**400],
    ("momentum_correction", "weight_decay"): [-0.1],
    ("momentum_correction", "clip_norm"): [0],
    ("momentum_correction", "nesterov"): [1],
    ("momentum_correction", "masking"): [None],
    ("low_pass", "beta"): [0, 1.5, "low"],
}
WRONG_EXCHANGES = {
    ("gtopk", "conserving"): [1],
    ("oktopk", "period"): [0],
    ("oktopk", "drift"): [0.9],
    ("oktopk", "slack"): [0.5],
    ("oktopk", "least_entries"): [0],
    ("hierarchical", "ranks_per_node"): [0],
    ("auto", "latency_ms"): [0],
    ("auto", "bandwidth_gbit"): [-1],
    ("auto", "ranks_per_node"): [1.5],
}
WRONG = [(SELECTORS, WRONG_OPTIONS), (MEMORIES, WRONG_MEMORIES), (EXCHANGES, WRONG_EXCHANGES)]


@pytest.mark.parametrize(
    ("registry", "id", "name", "values"),
    [(registry, *place, values) for registry, wrong in WRONG for place, values in wrong.items()],
)
def test_options_that_no_part_could_keep_are_refused_by_name(registry, id, name, values):
    given = {"threshold": 1.0} if id == "fixed_threshold" else {}
    for value in values:
        with pytest.raises(InvalidOption, match=f"{name} of {registry.get(id).__name__} is"):
            cases.Case(id, {**given, name: value}).create(registry, density=0.1)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (["a", "b", "a"], "two tensors are called 'a': give every tensor a name of its own"),
        (["a", ""], "tensor number 1 has the name '': give every tensor a non-empty string"),
        ([None], "tensor number 0 has the name None"),
        (["a", "b", 3], "tensor number 2 has the name 3"),
    ],
)
def test_duplicate_and_missing_names_are_refused(keys, words):
    with pytest.raises(InvalidOption, match=words):
        check_keys(keys)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "bool", "complex64", "float8_e4m3fn"])
def test_tensors_that_hold_no_floats_are_refused_by_name(dtype):
    words = rf"tensor 'embedding' has dtype {dtype}: only .*float32.*leave it out"
    with pytest.raises(UnsupportedInput, match=words):
        TensorSpec("embedding", (10, 10), dtype)


@pytest.mark.parametrize("shape", [(2**16, 2**16), (2**32,), (2**40, 3)])
def test_tensors_beyond_the_index_width_are_refused_by_name_and_size(shape):
    assert TensorSpec("w", (INDEX_LIMIT - 1,), "float16").numel == 2**32 - 1
    numel = math.prod(shape)
    with pytest.raises(UnsupportedInput, match=rf"'w' has {numel} entries: .*{2**32 - 1}; split"):
        TensorSpec("w", shape, "float32")


def test_a_sum_with_the_residual_that_overflows_is_refused_too():
    specs = worlds.tensors((2, 2))
    largest = np.array([[3e38, 3e38], [1e38, 0]], np.float32)

    def script(collective):
        session = Session(worlds.configure(density=0.25), specs, collective)
        session.reduce({"t0": largest})
        before = worlds.snapshot(session)
        words = r"gradient \+ residual, or a vector that the memory .* the range of float32"
        with np.errstate(over="ignore"), pytest.raises(PeerFailure, match=words):
            session.reduce({"t0": largest})
        return before == worlds.snapshot(session)

    assert worlds.run(1, script) == [True]
