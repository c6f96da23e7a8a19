"""``import hvd_sparse`` costs numpy and nothing heavier, and docstrings' examples are right."""

import doctest
import importlib
import re
import sys

import pytest
from architecture.imports import SOURCES, unit_of
from programs import run_python

LIGHT = {"isal"}


def modules_after(statement):
    script = (
        f"import sys\n{statement}\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    )
    run = run_python("-c", script)
    assert (run.returncode, run.stderr) == (0, "")
    return set(run.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import hvd_sparse",
        "from hvd_sparse.registry import SELECTORS; SELECTORS.create('ldte_bs', density=0.01)",
        "import hvd_sparse.step.session, hvd_sparse.collectives.local",
        "import hvd_sparse.cli",
    ],
)
def test_nothing_but_numpy_is_loaded(statement):
    loaded, by_numpy = modules_after(statement), modules_after("import numpy")
    assert "numpy" in loaded
    assert loaded - by_numpy - set(sys.stdlib_module_names) - LIGHT == {"hvd_sparse"}


def test_the_registries_are_filled_by_the_import_alone():
    statement = "import hvd_sparse.registry as r; assert all(registry.ids() for registry in r.ALL)"
    assert "hvd_sparse" in modules_after(statement)


FRAMEWORKS = ("torch", "tensorflow", "keras")
WITH_EXAMPLES = [
    module
    for module, path in SOURCES.items()
    if re.search(r"^ *>>> ", path.read_text(encoding="utf-8"), re.MULTILINE)
    and unit_of(module) not in FRAMEWORKS
]


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_an_example_prints_what_it_says(module):
    assert doctest.testmod(importlib.import_module(module)).failed == 0
