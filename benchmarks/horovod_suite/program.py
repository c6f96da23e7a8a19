"""One program or one file of tests of Horovod's, on one rank, with the stand-ins in place.

python -m benchmarks.horovod_suite.program FRAMEWORK SCRIPT [ARGUMENT...]
python -m benchmarks.horovod_suite.program FRAMEWORK --tests FILE NAME...

Leaves what every test came to in the folder that HVD_SPARSE_SUITE names, as outcomes.RANK.json.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.horovod_suite import stand_ins

RESULTS = "HVD_SPARSE_SUITE"


class Chosen:
    """A plugin of pytest's: runs the tests of these names, and writes down what each came to."""

    def __init__(self, names: list[str], path: Path) -> None:
        self._names, self._path, self._found = names, path, {}  # type: ignore[var-annotated]

    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        kept = [item for item in items if base_name(item.name, self._names)]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test that never ends has begun."""
        self._write(nodeid, "did not end", "")

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or not report.passed:
            crash = getattr(report.longrepr, "reprcrash", None)
            words = crash.message if crash else str(report.longrepr or "")
            self._write(report.nodeid, report.outcome, words)

    def _write(self, nodeid: str, outcome: str, words: str) -> None:
        self._found[nodeid.rpartition("::")[2]] = [outcome, words[:2000]]
        self._path.write_text(json.dumps(self._found), encoding="utf-8")


def base_name(name: str, names: list[str]) -> str | None:
    """Return which of the names a test has, with or without the number of its parameters."""
    bare = re.sub(r"(_\d+)?(\[.*\])?$", "", name)
    return next((each for each in names if each in (name, bare)), None)


def run_tests(file: str, names: list[str]) -> int:
    """Run tests of a file; return pytest's exit code."""
    import pytest

    rank = os.environ.get("HOROVOD_RANK", "0")
    plugin = Chosen(names, Path(os.environ[RESULTS]) / f"outcomes.{rank}.json")
    ways = ["-q", "-p", "no:cacheprovider", "-p", "no:timeout", "-p", "no:xdist", "-c", os.devnull]
    return int(pytest.main([*ways, "--rootdir", str(Path(file).parent), file], [plugin]))


def main() -> None:
    framework, first, *rest = sys.argv[1:]
    stand_ins.install()
    prepare = {
        "tensorflow": stand_ins.install_keras_2,
        "torch": stand_ins.forget_newer_optimizers,
    }
    prepare[framework]()
    if first == "--tests":
        sys.path.insert(0, str(Path(rest[0]).parent))
        sys.exit(run_tests(rest[0], rest[1:]))
    with tempfile.TemporaryDirectory(prefix="hvd-sparse-suite-") as folder:
        script = str(Path(first).resolve())
        os.chdir(folder)  # where checkpoints and logs of the examples may go
        sys.argv = [script, *rest]
        runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
