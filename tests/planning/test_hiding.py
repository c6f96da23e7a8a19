"""Densities that hide, layer by layer, as the adviser shows them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_sparse.autotune.costmodel.architectures import replayed
from hvd_sparse.autotune.costmodel.hiding import hide
from hvd_sparse.autotune.costmodel.network import Network, Setting
from hvd_sparse.autotune.costmodel.published import CPU
from hvd_sparse.checks import count_from_density
from hvd_sparse.errors import InvalidOption

RESNET = replayed("resnet50").scaled(0.08)


def on(bandwidth_bit_s, ranks=4):
    return Setting.on(Network(bandwidth_bit_s, 5e-5), ranks, CPU)


@settings(max_examples=25)
@given(st.floats(1e7, 1e11), st.floats(1e-4, 0.05), st.floats(1, 20), st.integers(2, 32))
def test_layers_of_a_message_have_one_density_and_the_last_message_has_the_least(
    bandwidth_bit_s, low, factor, ranks
):
    found = hide(RESNET, on(bandwidth_bit_s, ranks), low, low * factor)
    by_message = {group: set() for group in found.groups}
    for group, density in zip(found.groups, found.densities):
        by_message[group].add(density)
    assert all(len(densities) == 1 for densities in by_message.values())
    assert by_message[found.groups[-1]] == {low}
    assert all(low <= density <= low * factor for density in found.densities)
    assert found.layers == RESNET.compressed.layers
    assert found.share >= found.low_share


def test_what_is_shown_adds_up():
    found = hide(RESNET, on(1e9), 0.001, 0.05)
    told = json.loads(json.dumps(found.to_dict()))
    numel = sum(layer["numel"] for layer in told["layers"])
    sent = sum(count_from_density(layer["numel"], layer["density"]) for layer in told["layers"])
    assert told["share"] == pytest.approx(sent / numel) and told["share"] > 5 * told["low_share"]
    assert [layer["name"] for layer in told["layers"]] == [
        layer.name for layer in RESNET.compressed.layers
    ]


def test_where_nothing_hides_everything_has_the_least_density():
    found = hide(RESNET, on(1e5), 0.001, 0.05)
    assert set(found.densities) == {0.001}
    assert found.step_s == pytest.approx(found.low_step_s)


def test_densities_the_wrong_way_round_are_refused():
    with pytest.raises(InvalidOption, match="low is the smaller"):
        hide(RESNET, on(1e9), 0.1, 0.01)
