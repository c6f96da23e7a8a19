"""Options and settings that all tests share."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
import tiers
from hypothesis import HealthCheck, settings
from installed import horovod_parts, is_installed, left_out, missing
from tiers import RANKS, TESTS, folder_of

# Modules of checks get pytest's explanations of failed asserts, as test files do.
pytest.register_assert_rewrite("conformance")

common = settings(
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],  # a busy machine is
)
settings.register_profile("full", common, max_examples=50)
settings.register_profile("short", common, max_examples=5)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("hvd_sparse")
    group.addoption("--full", action="store_true", help="run every test, and draw more examples")
    group.addoption(
        "--slice", metavar="K/N", help="also run the K-th of N parts of what only --full runs"
    )
    group.addoption("--quick", action="store_true", help="leave out what needs ranks")
    group.addoption("--soak", action="store_true", help="also run the long tests, of hours")
    group.addoption(
        "--complete", action="store_true", help="refuse to run where anything must be left out"
    )


def pytest_configure(config: pytest.Config) -> None:
    os.environ["PYTHONFAULTHANDLER"] = "1"  # every process that a test starts says where it died
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # as scripts/test does
    settings.load_profile("full" if config.option.full else "short")
    if config.option.complete and missing():
        raise pytest.UsageError(f"would be left out: {left_out()}; run scripts/setup")
    if not hasattr(config, "workerinput"):  # workers of xdist inherit the variables
        use_temporary_folder(config)


def use_temporary_folder(config: pytest.Config) -> None:
    """Let this process and all that it starts create their temporary files in a folder that is
    deleted at the end. pytest keeps its own folders (``tmp_path``) where they would be without it.

    The path is short, because launchers create sockets in the folder.
    """
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    folder = tempfile.mkdtemp(prefix="hvd-")
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


def pytest_report_header(config: pytest.Config) -> str:
    if takes_all(config):
        return "tests: all that are named"
    part = config.option.slice
    return f"tests: the short run{f' and {tiers.Slice(part)}' if part else ''}; --full takes all"


def takes_all(config: pytest.Config) -> bool:
    """Return whether all collected tests run: with ``--full``, or if the command line names files
    or tests."""
    return config.option.full or Path(config.args[0]).resolve() != TESTS


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files that need ranks if ``--quick`` is given or Horovod is missing, a frontend's
    files if Horovod was built without its framework, and files without tests of the short run,
    because importing them takes time."""
    for framework in {"torch", "tensorflow"} - horovod_parts():
        if collection_path.match(f"tests/frontends/test_{framework}_*.py"):
            return True
    if folder_of(collection_path) not in RANKS:
        return None
    if config.option.quick or not is_installed("horovod"):
        return True
    if takes_all(config) or config.option.slice or not collection_path.match("test_*.py"):
        return None
    return True if collection_path.name not in tiers.SHORT_ON_RANKS else None


@pytest.hookimpl(tryfirst=True)  # processes read the groups in this hook of theirs
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.option.soak:
        longest = [item for item in items if item.get_closest_marker("soak")]
        config.hook.pytest_deselected(items=longest)
        items[:] = [item for item in items if item not in longest]
    if not takes_all(config):
        part = config.option.slice
        items[:], left = tiers.select(items, tiers.Slice(part) if part else None)
        config.hook.pytest_deselected(items=left)
    for item in items:
        group = "ranks" if folder_of(item.path) in RANKS else str(item.path)
        item.add_marker(pytest.mark.xdist_group(group))


def pytest_unconfigure(config: pytest.Config) -> None:
    """Print last which tests were left out because a package is missing. They never count as
    passed."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if missing() and reporter is not None and not hasattr(config, "workerinput"):
        reporter.write_line(f"LEFT OUT: {left_out()}", yellow=True)
