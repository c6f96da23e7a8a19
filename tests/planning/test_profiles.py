"""Profiles: JSON both ways, scaling, leaving layers out, and what they refuse."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_sparse.autotune.costmodel import Layer, Profile
from hvd_sparse.errors import InvalidOption

SECONDS = st.floats(0, 10, allow_subnormal=False)
LAYERS = st.builds(
    lambda numel, seconds, is_sparse: (numel, seconds, is_sparse),
    st.integers(1, 10**9),
    SECONDS,
    st.booleans(),
)
PROFILES = st.builds(
    lambda layers, other_s: Profile(
        tuple(Layer(f"l{i}", *each) for i, each in enumerate(layers)), other_s
    ),
    st.lists(LAYERS, min_size=1, max_size=20),
    SECONDS,
)
THREE = Profile((Layer("c", 5000, 1.0), Layer("b", 10, 2.0, False), Layer("a", 3000, 4.0)), 0.5)


@given(PROFILES)
def test_a_profile_comes_back_from_its_json(profile):
    assert Profile.from_json(profile.to_json()) == profile


@given(PROFILES, SECONDS)
def test_scaling_keeps_the_proportions(profile, backward_s):
    scaled = profile.scaled(backward_s)
    if profile.backward_s > 1e-6:
        assert scaled.backward_s == pytest.approx(backward_s)
        assert scaled.other_s * profile.backward_s == pytest.approx(profile.other_s * backward_s)
    assert scaled.ready_s == sorted(scaled.ready_s)


def test_gradients_are_ready_one_after_the_other():
    assert THREE.ready_s == [1.0, 3.0, 7.0]
    assert (THREE.numel, THREE.backward_s) == (8010, 7.0)


def test_the_time_of_layers_that_are_not_compressed_is_not_lost():
    assert THREE.compressed == Profile((Layer("c", 5000, 1.0), Layer("a", 3000, 6.0)), 0.5)
    last = Profile((Layer("c", 5000, 1.0), Layer("b", 10, 2.0, False)))
    assert last.compressed == Profile((Layer("c", 5000, 3.0),))


def test_a_profile_of_vectors_alone_cannot_be_compressed():
    with pytest.raises(InvalidOption, match="no layer of this profile is compressed"):
        _ = Profile((Layer("b", 10, 2.0, False),)).compressed


def test_a_file_may_tell_of_shapes_alone():
    described = [
        {"name": "w", "shape": [100, 100]},
        {"name": "b", "shape": [10000]},
        {"name": "v", "numel": 2000},
    ]
    profile = Profile.from_json(json.dumps(described))
    assert [layer.is_sparse for layer in profile.layers] == [True, False, True]
    assert [layer.numel for layer in profile.layers] == [10000, 10000, 2000]
    assert [layer.backward_s for layer in profile.layers] == [10 / 22, 10 / 22, 2 / 22]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "no JSON"),
        ("{}", "a profile is"),
        ("[1]", "a profile is"),
        ("[]", "no layers"),
        ('[{"name": "a"}]', "has no size"),
        ('[{"name": "a", "numel": 0}]', "has no size"),
        ('[{"name": "a", "shape": [2, "x"]}]', "has no size"),
        ('[{"name": "", "numel": 5}]', "at least one letter"),
        ('[{"name": "a", "numel": 5, "backward_s": -1}]', "backward_s -1"),
        ('[{"name": "a", "numel": 5, "time": 1}]', "unknown keys: time"),
        ('[{"name": "a", "numel": 5}, {"name": "a", "numel": 6}]', "twice: a"),
        (
            '[{"name": "a", "numel": 5, "backward_s": 1}, {"name": "b", "numel": 6}]',
            "for all or for none",
        ),
        ('{"layers": [{"name": "a", "numel": 5}], "other_s": "x"}', "other_s"),
    ],
)
def test_what_is_no_profile_is_refused_in_words(text, words):
    with pytest.raises(InvalidOption, match=words):
        Profile.from_json(text)
