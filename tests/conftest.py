"""Settings that all tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

# Modules of checks get pytest's explanations of failed asserts, as test files do.
pytest.register_assert_rewrite(
    "conformance.codec_checks",
    "conformance.exchange_checks",
    "conformance.kernel_checks",
    "conformance.memory_checks",
    "conformance.selector_checks",
)

settings.register_profile("suite", derandomize=True, max_examples=50, deadline=None, database=None)
settings.load_profile("suite")


TESTS = Path(__file__).resolve().parent

BUSY = ("docker", "frontends", "launch", "network", "passes", "soak")
"""Folders whose tests fill all cores by themselves, or count what the machine does: never two of them at a time."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="also run the long tests, which take hours")


@pytest.hookimpl(tryfirst=True)  # before xdist looks for groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--soak"):
        longest = [item for item in items if item.get_closest_marker("soak")]
        config.hook.pytest_deselected(items=longest)
        items[:] = [item for item in items if item not in longest]
    if config.pluginmanager.hasplugin("xdist"):
        busy = [item for item in items if item.path.relative_to(TESTS).parts[0] in BUSY]
        for item in busy:
            item.add_marker(pytest.mark.xdist_group("busy"))
        others = set(items).difference(busy)
        items[:] = [*busy, *(item for item in items if item in others)]  # they take longest
