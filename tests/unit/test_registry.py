"""Registries: what they say of names and options that they do not know."""

from dataclasses import dataclass

import pytest

from hvd_sparse.cli import papers
from hvd_sparse.errors import InvalidOption, SparseError, UnknownName
from hvd_sparse.registry import ALL, SELECTORS, Registry


@dataclass(frozen=True)
class Gadget:
    size: int
    colour: str = "red"
    range: tuple[int, int] = (1, 2)


@pytest.fixture
def gadgets():
    registry = Registry("gadget")
    registry.register("gadget")(Gadget)
    return registry


@pytest.mark.parametrize("registry", ALL, ids=lambda r: r.kind)
@pytest.mark.parametrize("id", ["nonsense", "", None, 3, [], {}], ids=repr)
def test_an_unknown_id_is_refused_with_those_there_are(registry, id):
    with pytest.raises(UnknownName, match=f"no {registry.kind} is .* are: {registry.ids()[0]}"):
        registry.create(id)


@pytest.mark.parametrize(
    ("typed", "meant"), [("top_k", "topk"), ("ldtebs", "ldte_bs"), ("Ldte", "ldte")]
)
def test_a_misspelt_id_is_answered_with_the_one_that_was_meant(typed, meant):
    with pytest.raises(UnknownName, match=f"did you mean '{meant}'"):
        SELECTORS.create(typed, density=0.1)


def test_missing_and_unknown_options_are_named_with_those_there_are(gadgets):
    words = "unknown option 'color', option 'size' is missing; its options: size, colour, range"
    with pytest.raises(InvalidOption, match=f"'gadget': {words}"):
        gadgets.create("gadget", color="red")


def test_resolve_refuses_what_is_no_part_or_one_of_another_registry(gadgets):
    part = SELECTORS.create("topk", density=0.1)
    for wrong in (None, 3, {}, {"size": 3}, Gadget, object(), part):
        with pytest.raises(UnknownName, match="gadget"):
            gadgets.resolve(wrong)


def test_an_id_is_given_once(gadgets):
    with pytest.raises(InvalidOption, match="gadget 'gadget' is registered twice"):
        gadgets.register("gadget")(Gadget)


@pytest.mark.parametrize("key", papers())
def test_a_paper_is_found_under_the_key_of_its_entry(key):
    entry = papers()[key]
    assert f"{{{key}," in entry.splitlines()[0]
    assert "title" in entry and "year" in entry
    assert entry.count("{") == entry.count("}")


@pytest.mark.parametrize("parts", ALL, ids=lambda r: r.kind)
def test_a_part_names_a_paper_that_is_listed_or_none(parts):
    for part in map(parts.get, parts):
        paper = getattr(part, "paper", None)
        assert paper is None or (paper in papers() and f"Paper: {paper}" in part.__doc__), part


def test_every_error_is_a_sparse_error_and_one_that_python_knows():
    import hvd_sparse.errors as errors

    for cls in vars(errors).values():
        if isinstance(cls, type) and cls is not SparseError:
            assert issubclass(cls, SparseError)
            assert any(
                base.__module__ == "builtins" and base is not object for base in cls.__bases__
            )
