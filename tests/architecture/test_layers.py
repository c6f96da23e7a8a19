"""Imports run one way: errors, types, papers <- registry <- core <- planning <- engines,
collectives <- frontends <- cli."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "hvd_sparse"
LAYERS = (
    ("errors", "types", "papers", "version"),
    ("registry",),
    ("core",),
    ("planning",),
    ("engines", "collectives", "runtime"),
    ("__init__",),
    ("torch", "tensorflow"),
    ("cli",),
    ("__main__",),
)
LEVEL = {unit: level for level, units in enumerate(LAYERS) for unit in units}
NUMPY_ONLY = ("errors", "types", "papers", "version", "registry", "core", "planning")
MAY_ALSO_IMPORT = {"hvd_sparse.core.wire.checksum": ("isal",)}
"""The exceptions: a package that is used if it is there, and changes nothing but the speed."""
MODULES = sorted(PACKAGE.rglob("*.py"))


def module_name(path: Path) -> str:
    """hvd_sparse/core/step/step.py is hvd_sparse.core.step.step, hvd_sparse/core/__init__.py is
    hvd_sparse.core.__init__."""
    return ".".join(["hvd_sparse", *path.relative_to(PACKAGE).with_suffix("").parts])


def unit_of(module: str) -> str:
    """The part of the package that a module belongs to."""
    return ([*module.split("."), "__init__"])[1]


def imports_of(source: str, module: str) -> set[str]:
    """Every module that a module may import, wherever in it: by statement, or by a name given to
    importlib."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = (
                ".".join([*module.split(".")[: -node.level], *filter(None, [node.module])])
                if node.level
                else node.module
            )
            found |= {f"{base}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and getattr(
            node.func, "attr", getattr(node.func, "id", "")
        ) in (
            "import_module",
            "__import__",
        ):
            found |= {
                argument.value for argument in node.args[:1] if isinstance(argument, ast.Constant)
            }
    return found


def violations(source: str, module: str) -> list[str]:
    """What a module imports against the rule."""
    unit, wrong = unit_of(module), []
    for imported in sorted(imports_of(source, module)):
        top = imported.split(".")[0]
        if top == "hvd_sparse":
            other = unit_of(imported) if unit_of(imported) in LEVEL else "__init__"
            together = other == unit or LEVEL[other] == LEVEL[unit] == 0
            if not together and LEVEL[other] >= LEVEL[unit]:
                wrong.append(f"{module} imports {imported}")
        elif unit in NUMPY_ONLY and top not in (
            "numpy",
            *MAY_ALSO_IMPORT.get(module, ()),
            *sys.stdlib_module_names,
        ):
            wrong.append(f"{module} imports {imported}")
    return wrong


def test_every_part_of_the_package_has_a_layer():
    assert {unit_of(module_name(path)) for path in MODULES} == set(LEVEL)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_run_one_way(path):
    assert violations(path.read_text(), module_name(path)) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("hvd_sparse.core.step.step", "import torch"),
        ("hvd_sparse.core.step.step", "def f():\n    import horovod.torch as hvd"),
        ("hvd_sparse.core.step.step", "import importlib\nimportlib.import_module('tensorflow')"),
        ("hvd_sparse.core.step.step", "from ..engines import resolve_engine"),
        ("hvd_sparse.core.step.step", "from .. import collectives"),
        ("hvd_sparse.selectors.topk", "from ...collectives.local import LocalWorld"),
        ("hvd_sparse.core.__init__", "from hvd_sparse.torch import Compression"),
        ("hvd_sparse.registry", "from .core import reference"),
        ("hvd_sparse.core.step.buckets", "from ..planning.planner import best"),
        ("hvd_sparse.autotune.costmodel.profile", "from ..collectives.local import LocalWorld"),
        ("hvd_sparse.autotune.costmodel.costs", "import scipy"),
        ("hvd_sparse.types", "from .registry import SELECTORS"),
        ("hvd_sparse.core.kernels.engines.fast", "from ..collectives import local"),
        ("hvd_sparse.torch.views", "from ..tensorflow import identity"),
        ("hvd_sparse.tensorflow.identity", "import hvd_sparse.torch"),
        ("hvd_sparse.torch.views", "from ..cli import main"),
        ("hvd_sparse.core.step.step", "from .. import TensorSpec"),
        ("hvd_sparse.core.step.step", "from isal.isal_zlib import crc32"),
        ("hvd_sparse.core.wire.checksum", "import numba"),
        ("hvd_sparse.__init__", "from . import torch"),
    ],
)
def test_an_import_against_the_rule_is_found(module, source):
    assert len(violations(source, module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "hvd_sparse.core.step.step",
            "import numpy as np\nimport zlib\nfrom .runs import StepRun\nfrom ..errors import "
            "PeerFailure",
        ),
        (
            "hvd_sparse.selectors.topk",
            "from .. import reference\nfrom ...registry import SELECTORS",
        ),
        ("hvd_sparse.papers", "from .errors import UnknownName"),
        ("hvd_sparse.autotune.costmodel.predict", "from ..core.economy import dense_inbound"),
        ("hvd_sparse.torch.compression", "from ..planning.planner import best"),
        ("hvd_sparse.core.kernels.engines.fast", "import numba\nfrom ..core import reference"),
        ("hvd_sparse.torch.views", "import torch\nfrom ..collectives import horovod_torch"),
        ("hvd_sparse.__init__", "from . import engines\nfrom .core import codecs"),
        ("hvd_sparse.cli.cite", "from ..papers import bibtex"),
    ],
)
def test_an_import_by_the_rule_is_left_alone(module, source):
    assert violations(source, module) == []
