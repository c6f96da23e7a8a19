"""Discovery of the parts: every module of a part's folder registers itself when it is imported."""

from __future__ import annotations

import importlib
import pkgutil


def import_siblings(package: str, path: list[str]) -> None:
    """Import every module of a package whose name has no leading underscore.

    So a new part is one new file.
    """
    for module in pkgutil.iter_modules(path):
        if not module.name.startswith("_"):
            importlib.import_module(f"{package}.{module.name}")
