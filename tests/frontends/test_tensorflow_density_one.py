"""Law 3 through Horovod's tape and Keras ``fit``: density 1.0 is dense Horovod, on real ranks under
MPI and Gloo."""

from __future__ import annotations

from typing import Any

import pytest
from _outcomes import measured
from _pairwise import all_pairs, pairs_of
from _tensorflow_launches import Launches, World
from _tensorflow_settings import (
    KERAS_FACTORS,
    KERAS_SETTINGS,
    LAUNCHES,
    PLACES,
    TAPE_FACTORS,
    TAPE_SETTINGS,
    Setting,
    settings_of,
)

WEIGHT_TOLERANCE = 1e-6
"""Of weights around 1 after eight steps at rate 0.05: a few roundings of float32 a step."""


def cases(kind: str, settings: list[Any], places: Any = LAUNCHES) -> list[Any]:
    """A test's parameters: each setting where it runs, launch by launch."""
    return [
        pytest.param(place, f"{kind}-{name}", setting, id=f"{place[0]}-{place[1]}-{name}")
        for place in places
        for name, setting in settings_of(settings, *place).items()
    ]


@pytest.fixture(scope="module")
def launches() -> Launches:
    both = {"tape": TAPE_SETTINGS, "keras": KERAS_SETTINGS}
    return Launches(
        {
            place: [p.values[1] for kind in both for p in cases(kind, both[kind], [place])]
            for place in LAUNCHES
        }
    )


@pytest.mark.parametrize(
    ("settings", "factors"),
    [(TAPE_SETTINGS, TAPE_FACTORS), (KERAS_SETTINGS, KERAS_FACTORS)],
    ids=["tape", "keras"],
)
def test_every_two_choices_meet_in_some_setting(
    settings: list[Setting], factors: dict[str, Any]
) -> None:
    assert set().union(*(pairs_of(vars(setting)) for setting in settings)) == all_pairs(factors)
    assert (
        len({(setting.place, str(setting)) for setting in settings})
        == len(settings)
        <= 5 * len(PLACES)
    )


@pytest.mark.parametrize("place", LAUNCHES, ids=str)
def test_the_launch_ends_well(launches: Launches, place: World) -> None:
    launches.check(place)


def check_what_was_sent(result: dict[str, Any]) -> None:
    """Every entry, and nothing dense; nothing at all where Horovod has no other rank to reduce
    with."""
    expected = result if result["is_reduced"] else {"numel": 0, "tensor_steps": 0}
    assert result["dense_steps"] == 0
    assert result["entries_sent"] == result["entries_total"] == expected["numel"]
    assert result["sparse_steps"] == expected["tensor_steps"]


@pytest.mark.parametrize(("place", "case", "setting"), cases("tape", TAPE_SETTINGS))
def test_gradients_of_the_tape_are_those_of_dense_horovod(
    launches: Launches, place: World, case: str, setting: Any
) -> None:
    """Two sums of n numbers, in any order and twice scaled, differ by n + 1 roundings of their
    magnitudes at most."""
    results = measured(launches[place], case)
    assert any(result["is_reduced"] for result in results) == (place[0] > 1)
    for result in results:
        check_what_was_sent(result)
        assert result["dtypes_kept"]
        if not result["is_reduced"]:
            roundings = (
                1 if setting.network == "local_layer" else 0
            )  # Horovod divides these everywhere
            assert result["error_ulps"] <= roundings
            continue
        assert result["error_ulps"] <= place[0] + 1
        assert result["effect_ulps"] > 10 * (place[0] + 1), (
            "reducing changed nothing: the comparison proves nothing"
        )


@pytest.mark.parametrize(("place", "case", "setting"), cases("keras", KERAS_SETTINGS))
def test_weights_of_keras_are_those_of_dense_horovod(
    launches: Launches, place: World, case: str, setting: Any
) -> None:
    results = measured(launches[place], case)
    assert any(result["is_reduced"] for result in results) == (place[0] > 1)
    for result in results:
        check_what_was_sent(result)
        if not result["is_reduced"]:
            assert result["difference"] == 0
            continue
        assert result["difference"] <= WEIGHT_TOLERANCE
        assert result["effect"] > 1000 * WEIGHT_TOLERANCE, (
            "reducing changed nothing: the comparison proves nothing"
        )
