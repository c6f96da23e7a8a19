"""Imports run one way, and in no circle."""

import sys
from graphlib import CycleError, TopologicalSorter

import pytest
from architecture.imports import SOURCES, graph_of, imports_of, unit_of

LAYERS = (
    ("errors", "version", "collectives.contract"),
    ("checks",),
    ("types", "registry", "tracing"),
    ("kernels", "density_rule"),
    ("wire",),
    ("selectors", "memories", "codecs", "schedules", "telemetry"),
    ("exchanges",),
    ("composition",),
    ("configuration",),
    ("step", "optimizer_memory", "collectives", "watch", "state", "__init__"),
    ("methods", "plan"),
    ("frontend",),
    ("frontend.torch",),
    ("torch", "tensorflow", "ddp"),
    ("keras",),
    ("cli",),
    ("__main__",),
)
"""From below. A unit imports from itself and from the lines before its own, never from its own."""
LEVEL = {unit: level for level, units in enumerate(LAYERS) for unit in units}
FRONTENDS = {"frontend.torch", "torch", "tensorflow", "ddp", "keras"}
NUMPY_ONLY = set(LEVEL) - {"collectives", "watch", "state", *FRONTENDS, "cli"}
MAY_ALSO_IMPORT = {
    "hvd_sparse.wire.frame": ("isal",),
    "hvd_sparse.kernels.numba": ("numba", "llvmlite"),
    "hvd_sparse.kernels.torch": ("torch", "greenlet"),
    "hvd_sparse.kernels.triton": ("torch", "triton"),
    "hvd_sparse.telemetry.tensorboard": ("torch", "tensorflow"),
    "hvd_sparse.telemetry.weights_and_biases": ("wandb",),
    "hvd_sparse.telemetry.mlflow": ("mlflow",),
}
"""The exceptions, with all that lies in them: packages that are used if they are there, and change
nothing but the speed, or where the work is done; or that a user has named."""


def violations(source, module):
    unit, wrong = unit_of(module), []
    allowed = {"numpy", *sys.stdlib_module_names}
    for owner, packages in MAY_ALSO_IMPORT.items():
        if module == owner or module.startswith(f"{owner}."):
            allowed.update(packages)
    for imported in sorted(imports_of(source)):
        top, other = imported.split(".")[0], unit_of(imported)
        if top != "hvd_sparse":
            is_wrong = unit in NUMPY_ONLY and top not in allowed
        else:
            is_wrong = other != unit and not LEVEL.get(other, len(LAYERS)) < LEVEL[unit]
        if is_wrong:
            wrong.append(f"{module} imports {imported}")
    return wrong


def test_every_unit_of_the_package_has_a_layer_and_every_layer_units():
    assert {unit_of(module) for module in SOURCES} == set(LEVEL)


def test_imports_run_one_way():
    wrong = []
    for module, path in SOURCES.items():
        wrong += violations(path.read_text(encoding="utf-8"), module)
    assert wrong == []


def test_no_modules_import_each_other_in_a_circle():
    sources = {module: path.read_text(encoding="utf-8") for module, path in SOURCES.items()}
    TopologicalSorter(graph_of(sources)).prepare()  # raises CycleError


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("hvd_sparse.step.step", "import torch"),
        ("hvd_sparse.step.step", "def f():\n    import horovod.torch as hvd"),
        ("hvd_sparse.step.step", "import importlib\nimportlib.import_module('tensorflow')"),
        ("hvd_sparse.step.step", "from hvd_sparse import TensorSpec"),
        ("hvd_sparse.kernels.numba.fused", "import torch"),
        ("hvd_sparse.selectors.topk", "from hvd_sparse.codecs.contract import Codec"),
        (
            "hvd_sparse.exchanges.contract",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
            "    from hvd_sparse.configuration import Configuration",
        ),
        ("hvd_sparse.types", "from hvd_sparse.unheard_of import anything"),
        ("hvd_sparse.torch.views", "from hvd_sparse.tensorflow import identity"),
        ("hvd_sparse.frontend.compressor", "from hvd_sparse.frontend.torch import arrays"),
    ],
)
def test_an_import_against_the_rule_is_found(module, source):
    assert len(violations(source, module)) == 1


def test_a_circle_is_found():
    sources = {"p.a": "from p import b", "p.b": "def f():\n    from p.c import g"}
    sources |= {"p.c": "import p.a", "p": "from p.a import A"}
    with pytest.raises(CycleError):
        TopologicalSorter(graph_of(sources)).prepare()
