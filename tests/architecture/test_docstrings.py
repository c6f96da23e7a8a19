"""Every part says what it is, what its options mean and whose idea it was."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from pathlib import Path

import pytest

from hvd_sparse import registry
from hvd_sparse.cli.cite import papers
from hvd_sparse.codecs.contract import Codec
from hvd_sparse.exchanges.contract import Exchange
from hvd_sparse.kernels import contract as kernels
from hvd_sparse.kernels import packing
from hvd_sparse.memories.contract import Memory, MemoryState
from hvd_sparse.schedules.contract import Schedule
from hvd_sparse.selectors.contract import Selector

CONTRACTS = (
    Codec,
    Exchange,
    Memory,
    MemoryState,
    Schedule,
    Selector,
    kernels.Kernels,
    kernels.Engine,
)
PARTS = [
    pytest.param(parts, parts.get(id), id=f"{parts.kind}-{id}")
    for parts in registry.ALL
    for id in parts
]
OF_A_PAPER = [
    param
    for param in PARTS
    if param.values[0].kind in ("selector", "codec", "exchange", "memory", "schedule")
]
PLANNING = Path(registry.__file__).with_name("plan")
MODULES = sorted(
    {param.values[1].__module__ for param in PARTS} | {"hvd_sparse.registry", "hvd_sparse.types"}
)


def public(owner) -> dict[str, object]:
    """Functions, classes and properties that are defined here, not borrowed."""
    return {
        name: thing
        for name, thing in vars(owner).items()
        if not name.startswith("_")
        and (inspect.isclass(thing) or inspect.isfunction(thing) or isinstance(thing, property))
        and getattr(thing, "__module__", None)
        in (None, getattr(owner, "__module__", None), owner.__name__)
    }


def says(owner, name: str) -> bool:
    """Documented where it is, or in the contract that it fulfils."""
    thing = vars(owner)[name]
    own = thing.__doc__ if isinstance(thing, property) else inspect.getdoc(getattr(owner, name))
    return bool(own) or any(
        inspect.getdoc(getattr(contract, name, None))
        for contract in CONTRACTS
        if name in vars(contract)
    )


@pytest.mark.parametrize(("parts", "part"), PARTS)
def test_a_part_and_its_public_methods_say_what_they_do(parts, part):
    assert part.__doc__ and not part.__doc__.startswith(f"{part.__name__}("), (
        "a dataclass's own docstring is no docstring"
    )
    assert [name for name in public(part) if not says(part, name)] == []


@pytest.mark.parametrize("module", MODULES)
def test_a_module_of_parts_says_what_it_and_its_public_names_are(module):
    owner = sys.modules[module]
    assert owner.__doc__
    undocumented = [name for name, thing in public(owner).items() if not inspect.getdoc(thing)]
    assert undocumented == []


@pytest.mark.parametrize(("parts", "part"), OF_A_PAPER)
def test_every_option_is_explained(parts, part):
    documented = "\n".join(cls.__doc__ or "" for cls in part.__mro__)
    missing = [
        f.name for f in dataclasses.fields(part) if f.init and f"{f.name} :" not in documented
    ]
    assert missing == []


@pytest.mark.parametrize(("parts", "part"), OF_A_PAPER)
def test_a_part_names_a_paper_that_is_listed_or_none(parts, part):
    assert part.paper is None or part.paper in papers()
    if part.paper is not None:
        assert f"Paper: {part.paper}" in part.__doc__


def test_every_paper_is_of_some_part_of_the_planner_or_of_local_steps():
    """As its own, or in the words of its docstring."""
    docstrings = " ".join(param.values[1].__doc__ for param in OF_A_PAPER)
    others = [*PLANNING.rglob("*.py"), *PLANNING.parent.glob("*/local_steps.py")]
    docstrings += " ".join(path.read_text(encoding="utf-8") for path in others)
    assert [key for key in papers() if key not in docstrings] == []


def test_every_kernel_has_a_contract():
    contracts = {**public(packing.Packers), **public(kernels.Kernels)}
    assert [name for name, contract in contracts.items() if not contract.__doc__] == []
