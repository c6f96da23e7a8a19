"""What PyTorch's ``Compression`` refuses before any training, by names and with the way out."""

from __future__ import annotations

import gc
import itertools
import math
from collections.abc import Iterator
from typing import Any

import horovod.torch as hvd
import pytest
import torch
from torch import nn

from hvd_sparse.errors import InvalidOption, SparseError, UnknownName, UnsupportedInput
from hvd_sparse.torch import Compression

METHODS = ("ldte_bs", "ldte", "topk")
PARTS = {
    "selector": "topk",
    "memory": "error_feedback",
    "codec": "index_value",
    "exchange": "allgather",
    "schedule": "constant",
}


@pytest.fixture(autouse=True)
def two_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Horovod answers on two ranks; nothing is sent here."""
    size = {True: 2, False: None}
    monkeypatch.setattr(
        hvd.ProcessSet, "size", lambda process_set: size[process_set.process_set_id is not None]
    )


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))


def refused(kind: type[SparseError], *words: str, params: Any = None, **options: Any) -> None:
    """The error must be of the kind, and hold the words."""
    params = model().named_parameters() if params is None else params
    with pytest.raises(kind) as caught:
        Compression.topk(params, **{"density": 0.1, **options})
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "density", [0, 0.0, -0.1, 1.0000001, 100, math.nan, math.inf, True, "0.1", None]
)
def test_density_outside_its_range_is_refused(method: str, density: Any) -> None:
    with pytest.raises(InvalidOption) as caught:
        getattr(Compression, method)(model().named_parameters(), density=density)
    assert "density" in str(caught.value)
    assert repr(density) in str(caught.value)
    assert "(0, 1]" in str(caught.value)


@pytest.mark.parametrize("method", METHODS)
def test_density_has_no_default(method: str) -> None:
    with pytest.raises(TypeError, match="density"):
        getattr(Compression, method)(model().named_parameters())


@pytest.mark.parametrize("part", PARTS)
def test_unknown_ids_are_answered_with_those_that_exist(part: str) -> None:
    options: dict[str, Any] = {
        "selector": {"id": "topk", "density": 0.1},
        part: {"id": PARTS[part] + "x"},
    }
    with pytest.raises(UnknownName) as caught:
        Compression.build(model().named_parameters(), **options)
    assert part in str(caught.value)
    assert repr(PARTS[part] + "x") in str(caught.value)
    assert f"did you mean {PARTS[part]!r}" in str(caught.value)


def test_unknown_engine_is_answered_with_those_that_exist() -> None:
    refused(UnknownName, "'warp'", "there are:", engine="warp")


def test_unknown_option_is_answered_with_those_that_exist() -> None:
    refused(InvalidOption, "'min_nummel'", "min_numel", min_nummel=3)


def test_unknown_option_of_a_part_is_named() -> None:
    with pytest.raises(InvalidOption, match="unknown option 'ratio'"):
        Compression.build(
            model().named_parameters(), selector={"id": "topk", "density": 0.1, "ratio": 3}
        )


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *itertools.product(["min_numel"], [-1, 2.5, True]),
        *itertools.product(["timeout_s"], [0, -3.0, math.inf, math.nan]),
        *itertools.product(["name"], ["", 7]),
        *itertools.product(
            ["compress_1d", "rollback", "allow_dense", "telemetry"], ["yes", 1, None]
        ),
    ],
)
def test_options_that_make_no_sense_are_refused(option: str, value: Any) -> None:
    refused(InvalidOption, option, repr(value), **{option: value})


def test_names_that_come_twice_are_refused() -> None:
    refused(
        InvalidOption, "'twice'", params=[("twice", nn.Parameter(torch.zeros(3))) for _ in range(2)]
    )


@pytest.mark.parametrize("name", ["", None, 3])
def test_parameters_need_names(name: Any) -> None:
    refused(InvalidOption, "name", repr(name), params=[(name, nn.Parameter(torch.zeros(3)))])


def test_parameters_without_names_are_refused() -> None:
    refused(InvalidOption, "named_parameters()", params=model().parameters())


def test_a_generator_that_is_used_up_is_refused() -> None:
    named = model().named_parameters()
    dict(named)
    refused(InvalidOption, "named_parameters() again", params=named)


def test_trained_tensors_that_are_no_floats_are_refused() -> None:
    phases = nn.Parameter(torch.zeros(3, dtype=torch.complex64))
    refused(UnsupportedInput, "'phases'", "complex64", "leave it out", params=[("phases", phases)])


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.bool, torch.complex64])
def test_tensors_that_are_no_floats_and_need_no_gradient_are_left_out(dtype: torch.dtype) -> None:
    """As the weights of 8 bits below LoRA's; frozen floats stay, as they may be trained later."""
    base = nn.Parameter(torch.zeros(8, 8, dtype=dtype), requires_grad=False)
    frozen = nn.Parameter(torch.zeros(8, 8), requires_grad=False)
    named = [("base", base), ("low", nn.Parameter(torch.zeros(8, 2))), ("frozen", frozen)]
    compressor = Compression.topk(named, density=0.1)
    assert [spec.key for spec in compressor.step.specs] == ["low", "frozen"]
    assert compressor._parameters[0] is named[1][1]
    compressor.close()
    refused(
        InvalidOption,
        "none of the 1 parameters can have a gradient",
        "'base'",
        params=[("base", base)],
    )


def test_tensors_beyond_the_index_width_are_refused() -> None:
    huge = nn.Parameter(torch.empty(2**16, 2**16, device="meta"))
    refused(UnsupportedInput, "'huge'", str(2**32), "32 bits", "split it", params=[("huge", huge)])


def test_horovod_must_have_been_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"hvd\.init\(\)"):
        Compression.topk(model().named_parameters(), density=0.1)


@pytest.fixture
def living() -> Iterator[Any]:
    compressor = Compression.topk(model().named_parameters(), density=0.1, name="the one")
    yield compressor
    compressor.close()


def test_two_living_compressors_of_one_name_are_refused(living: Any) -> None:
    refused(InvalidOption, repr(living.name), "name=", "close()", name=living.name)


def test_two_models_of_equal_shapes_have_names_of_their_own() -> None:
    first = Compression.topk(model().named_parameters(), density=0.1)
    second = Compression.topk(model().named_parameters(), density=0.1)
    assert first.name != second.name
    refused(InvalidOption, repr(second.name), "name=", name=second.name)
    first.close()
    second.close()


def test_a_name_is_free_again_after_close_and_after_the_end_of_its_compressor() -> None:
    for _ in range(2):
        Compression.topk(model().named_parameters(), density=0.1, name="again").close()
    for _ in range(2):
        forgotten = Compression.topk(model().named_parameters(), density=0.1, name="forgotten")
        del forgotten
        gc.collect()


@pytest.mark.parametrize(
    "process_set", ["all", hvd.ProcessSet([0])], ids=["text", "not registered"]
)
def test_process_sets_that_horovod_does_not_know_are_refused(process_set: Any) -> None:
    refused(InvalidOption, "process_set", process_set=process_set)


@pytest.mark.parametrize("method", METHODS)
def test_a_configuration_comes_back_from_its_description(method: str) -> None:
    first = getattr(Compression, method)(
        model().named_parameters(), density=0.25, min_numel=7, name="first"
    )
    second = Compression.from_config(
        model().named_parameters(), {**first.config(), "name": "second"}
    )
    assert second.config() == {**first.config(), "name": "second"}
    assert "TopK" in repr(first) or "Ldte" in repr(first)
    first.close()
    second.close()
