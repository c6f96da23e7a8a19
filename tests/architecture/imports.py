"""The package's imports, read from its source, and its units."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "hvd_sparse"
ROOMS = ("collectives.contract", "frontend.torch")
"""Units that lie deeper than the first name below the package."""


def module_name(path):
    """Return the dotted name of a file: hvd_sparse/wire/__init__.py is hvd_sparse.wire."""
    parts = ["hvd_sparse", *path.relative_to(PACKAGE).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def unit_of(module):
    """Return the unit of a module: the deepest unit of ``ROOMS`` that contains it, or else the
    first name below the package."""
    inside = module.removeprefix("hvd_sparse").removeprefix(".")
    rooms = [room for room in ROOMS if inside == room or inside.startswith(f"{room}.")]
    return max(rooms, key=len, default=inside.split(".")[0] or "__init__")


def imports_of(source, modules=SOURCES):
    known, found = set(modules), set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            named = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if name in known else node.module for name in named}
        elif isinstance(node, ast.Call):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called in ("import_module", "__import__"):
                found |= {each.value for each in node.args[:1] if isinstance(each, ast.Constant)}
    return found


def graph_of(sources):
    return {
        module: (imports_of(source, sources) & set(sources)) - {module}
        for module, source in sources.items()
    }
