"""Settings that all tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
import thinning
from hypothesis import settings
from installed import horovod_parts, is_installed, left_out, missing

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
QUICK = (
    "architecture",
    "conformance",
    "devices",
    "docker",
    "golden",
    "invariants",
    "passes",
    "planning",
    "unit",
)
"""Folders whose tests need no ranks."""

common = settings(derandomize=True, deadline=None, database=None)
settings.register_profile("suite", common, max_examples=50)
settings.register_profile("quick", common, max_examples=5)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--soak", action="store_true", help="also run the long tests, which take hours"
    )
    parser.addoption(
        "--quick", action="store_true", help="leave out what needs ranks, and draw fewer examples"
    )
    parser.addoption(
        "--complete", action="store_true", help="refuse to run where anything must be left out"
    )


def pytest_configure(config: pytest.Config) -> None:
    is_quick = config.getoption("--quick")
    settings.load_profile("quick" if is_quick else "suite")
    thinning.parts = thinning.QUICK_PARTS if is_quick else 1
    if config.getoption("--complete") and missing():
        raise pytest.UsageError(f"would be left out: {left_out()}; run scripts/setup")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out folders that need ranks with ``--quick``, and where there is no Horovod; a
    frontend's files where Horovod was built without its framework."""
    for framework in {"torch", "tensorflow"} - horovod_parts():
        if collection_path.match(f"tests/frontends/test_{framework}_*.py"):
            return True
    if not collection_path.is_relative_to(TESTS) or not collection_path.is_dir():
        return None
    folder = collection_path.relative_to(TESTS).parts[:1]
    if config.getoption("--quick") and folder and folder[0] not in QUICK:
        return True
    return True if folder and folder[0] in RANKS and not is_installed("horovod") else None


@pytest.hookimpl(tryfirst=True)  # processes read the groups in this hook of theirs
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--soak"):
        longest = [item for item in items if item.get_closest_marker("soak")]
        config.hook.pytest_deselected(items=longest)
        items[:] = [item for item in items if item not in longest]
    for item in items:
        file = item.path.relative_to(TESTS)
        item.add_marker(pytest.mark.xdist_group("ranks" if file.parts[0] in RANKS else str(file)))


def pytest_unconfigure(config: pytest.Config) -> None:
    """Say last what was left out for want of a package: it never counts as passed."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if missing() and reporter is not None and not hasattr(config, "workerinput"):
        reporter.write_line(f"LEFT OUT: {left_out()}", yellow=True)
