"""The parameter lists of known models: totals, operations, and the order of gradients."""

import pytest

from benchmarks.architectures import ARCHITECTURES, flops, parameters
from hvd_sparse.cli.advise import MODELS
from hvd_sparse.errors import UnknownName

TOTALS = {
    "resnet50": (161, 25_557_032, 25_502_912),
    "vgg16": (32, 138_357_544, 138_344_128),
    "inception_v4": (449, 42_679_816, 42_615_648),
    "lstm": (11, 66_034_000, 66_000_000),
    "transformer": (76, 9_884_944, 9_854_976),
}
"""Tensors, entries, and entries of those that are no vectors, as the literature has them."""

GIGAFLOPS = {"resnet50": 8.2, "vgg16": 30.9, "inception_v4": 24.6}
"""Of one image forward: twice the multiply-adds of 4.1, 15.5 and 12.3 billion."""


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_model_has_the_entries_that_it_is_known_for_and_advise_knows_them(name):
    listed = parameters(name)
    numel = sum(parameter.numel for parameter in listed)
    matrices = [parameter.numel for parameter in listed if len(parameter.shape) > 1]
    assert (len(listed), numel, sum(matrices)) == TOTALS[name]
    assert len({parameter.name for parameter in listed}) == len(listed)
    compressed = sum(size >= 1024 for size in matrices)
    backward_s = pytest.approx(2 * 32 * flops(name) / 10e12, rel=0.01)
    assert MODELS[name] == (numel, compressed, backward_s)


@pytest.mark.parametrize("name", GIGAFLOPS)
def test_a_model_takes_the_operations_that_it_is_known_for(name):
    assert flops(name) / 1e9 == pytest.approx(GIGAFLOPS[name], rel=0.01)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_last_layers_gradient_is_ready_before_the_first_layers(name):
    times = [parameter.ready for parameter in parameters(name)]
    assert min(times) >= 0 and max(times) <= 1
    assert times[-1] < times[0]


def test_an_unknown_model_is_refused_with_those_there_are():
    with pytest.raises(UnknownName, match="there are: resnet50, vgg16, inception_v4"):
        parameters("resnet18")
