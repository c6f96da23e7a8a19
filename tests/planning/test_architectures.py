"""The layer lists of known models: totals, shapes, operations."""

from __future__ import annotations

import pytest

from benchmarks.architectures import ARCHITECTURES, parameters, ready, resnet50
from hvd_sparse.errors import UnknownName

TOTALS = {
    "resnet50": (161, 25_557_032, 25_502_912),
    "vgg16": (32, 138_357_544, 138_344_128),
    "inception_v4": (449, 42_679_816, 42_615_648),
    "lstm": (11, 66_034_000, 66_000_000),
    "transformer": (76, 9_884_944, 9_854_976),
}
"""Tensors, entries, and entries of those that are no vectors."""

GIGAFLOPS = {"resnet50": 8.2, "vgg16": 30.9, "inception_v4": 24.6}
"""Of one image forward, as the literature has them (twice the multiply-adds of 4.1, 15.5 and 12.3
billion)."""


def test_every_model_has_its_totals_listed():
    assert set(TOTALS) == set(ARCHITECTURES)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_model_has_the_entries_that_it_is_known_for(name):
    listed = parameters(name)
    matrices = sum(parameter.numel for parameter in listed if len(parameter.shape) > 1)
    assert (len(listed), sum(parameter.numel for parameter in listed), matrices) == TOTALS[name]
    assert len({parameter.name for parameter in listed}) == len(listed)


@pytest.mark.parametrize("name", GIGAFLOPS)
def test_a_model_takes_the_operations_that_it_is_known_for(name):
    assert sum(parameter.flops for parameter in parameters(name)) / 1e9 == pytest.approx(
        GIGAFLOPS[name], rel=0.01
    )


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name != "inception_v4"])
def test_a_list_is_that_of_the_module_that_computes_really(name):
    torch = pytest.importorskip("torch", reason="the modules are torch's")
    from benchmarks.network.models import MODELS

    with torch.device("meta"):
        model = MODELS[name]()
    real = [(key, tuple(parameter.shape)) for key, parameter in model.named_parameters()]
    assert [(parameter.name, parameter.shape) for parameter in parameters(name)] == real


def test_a_narrow_resnet_has_the_shapes_of_a_wide_one_in_small():
    for narrow, wide in zip(resnet50(16), resnet50(64)):
        assert narrow.name == wide.name
        assert all(4 * a == b or a == b for a, b in zip(narrow.shape, wide.shape))


def test_a_pass_begins_with_the_last_layer_and_ends_with_the_first():
    found = ready("resnet50")
    assert next(iter(found)) == "fc.bias" and list(found)[-1] == "layers.0.weight"
    assert list(found.values()) == sorted(found.values())
    assert found["layers.0.weight"] == 1.0 and 0 < found["fc.weight"] < 0.01


def test_an_unknown_model_is_refused_with_those_there_are():
    with pytest.raises(UnknownName, match="there are: resnet50, vgg16, inception_v4"):
        parameters("resnet18")
