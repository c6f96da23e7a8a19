"""Engines: the kernels of ``core.kernels`` restated for speed, one a file, and how one is chosen."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

from ..core import reference
from ..registry import ENGINES


@ENGINES.register("numpy")
@dataclass(frozen=True)
class NumpyEngine:
    """The reference kernels, in plain numpy, on the CPU."""

    kernels: ClassVar[ModuleType] = reference


def resolve_engine(id: str | None) -> Any:
    """The kernels of an engine; None asks for the best that is installed.  UnknownName for an id that is none."""
    return ENGINES.get(id or "numpy").kernels
