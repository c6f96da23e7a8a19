"""From times of gradients to a profile, and from a plan to buckets."""

from __future__ import annotations

import pytest

from hvd_sparse.autotune.costmodel import Layer, Profile
from hvd_sparse.autotune.costmodel.measured_profile import measured_profile, planned_buckets
from hvd_sparse.configuration import Configuration
from hvd_sparse.core.step.buckets import merge_small
from hvd_sparse.errors import InvalidOption
from hvd_sparse.types import TensorSpec

SHAPES = {"a": (64, 32), "a.bias": (64,), "b": (100, 100), "unused": (50, 50), "c": (40, 40)}
SPECS = [TensorSpec(key, shape, "float32") for key, shape in SHAPES.items()]
CONFIGURATION = Configuration.create(selector={"id": "topk", "density": 0.01})
READY = {"c": [1.0, 1.1, 9.0], "b": [3.0, 3.0, 3.1], "a.bias": [4.0], "a": [4.0, 4.0], "unused": []}


def test_a_profile_is_the_medians_in_the_order_in_which_gradients_came():
    profile = measured_profile(SPECS, READY, CONFIGURATION, other_s=0.5)
    assert [layer.name for layer in profile.layers] == ["c", "b", "a.bias", "a"]
    assert [layer.is_sparse for layer in profile.layers] == [True, True, False, True]
    assert profile.ready_s == pytest.approx([1.1, 3.0, 4.0, 4.0]) and profile.other_s == 0.5


def test_a_plan_becomes_buckets_of_positions():
    profile = measured_profile(SPECS, READY, CONFIGURATION)
    assert planned_buckets((2, 3), profile, SPECS) == [(2, 4), (0,)]
    assert planned_buckets((1, 2, 3), profile, SPECS) == [(4,), (2,), (0,)]
    everything = measured_profile(SPECS, {**READY, "unused": [2.0]}, CONFIGURATION)
    assert planned_buckets((4,), everything, SPECS) == merge_small(SPECS, CONFIGURATION)


def test_names_that_nobody_registered_are_refused():
    with pytest.raises(InvalidOption, match="gradients of d were timed"):
        measured_profile(SPECS, {"d": [1.0]}, CONFIGURATION)
    with pytest.raises(InvalidOption, match="not among the registered tensors: x"):
        planned_buckets((1,), Profile((Layer("x", 5000, 1.0),)), SPECS)
    with pytest.raises(InvalidOption, match="no layers"):
        measured_profile(SPECS, {}, CONFIGURATION)
    with pytest.raises(InvalidOption, match="plan"):
        planned_buckets((1,), measured_profile(SPECS, READY, CONFIGURATION), SPECS)
