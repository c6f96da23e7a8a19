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

TESTS = Path(__file__).resolve().parent
RANKS = ("frontends", "launch", "network", "soak")
"""Folders whose tests start real ranks: one launch at a time, as each wants more cores than there
are."""

settings.register_profile("suite", derandomize=True, max_examples=50, deadline=None, database=None)
settings.load_profile("suite")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--soak", action="store_true", help="also run the long tests, which take hours"
    )


@pytest.hookimpl(tryfirst=True)  # processes read the groups in this hook of theirs
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--soak"):
        longest = [item for item in items if item.get_closest_marker("soak")]
        config.hook.pytest_deselected(items=longest)
        items[:] = [item for item in items if item not in longest]
    for item in items:
        file = item.path.relative_to(TESTS)
        item.add_marker(pytest.mark.xdist_group("ranks" if file.parts[0] in RANKS else str(file)))
