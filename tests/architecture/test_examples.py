"""The examples of docstrings do what they say."""

from __future__ import annotations

import doctest
import importlib
import re

import pytest
from architecture.imports import SOURCES, unit_of

FRAMEWORKS = ("torch", "tensorflow", "keras")
"""Units whose examples need Horovod."""
WITH_EXAMPLES = [
    module
    for module, path in SOURCES.items()
    if re.search(r"^ *>>> ", path.read_text(encoding="utf-8"), re.MULTILINE)
    and unit_of(module) not in FRAMEWORKS
]


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_an_example_prints_what_it_says(module):
    assert doctest.testmod(importlib.import_module(module)).failed == 0
