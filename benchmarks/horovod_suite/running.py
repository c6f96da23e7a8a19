"""Runs of Horovod's programs and tests on two ranks, as they are and with a compressor."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks._limited import ROOT, run_limited
from benchmarks._ranks import SETTINGS
from benchmarks.horovod_suite.catalogue import Program
from benchmarks.horovod_suite.program import RESULTS, base_name
from benchmarks.horovod_suite.rewriting import Compressor, shorten, with_compression

RANKS = 2
SHOWN = 3000
"""Characters of what a failed program printed, from its end."""
ENDS = {"did not end": 4, "failed": 3, "error": 3, "passed": 2, "skipped": 1}
"""What a test can come to, the worst first: that of all ranks is the worst of them."""


@dataclass(frozen=True)
class Outcome:
    """What a program, or a test of a file, came to.

    Attributes
    ----------
    path, name : of the file, and of the test in it; no name for a program
    way : "none" or the method's name
    end : "passed", "failed", "skipped" or "did not end"
    words : the end of what was said about a failure
    """

    path: str
    name: str
    way: str
    end: str
    words: str = ""

    def record(self) -> dict[str, str]:
        """Return it for JSON."""
        return asdict(self)


def run(
    program: Program, sources: Path, compressor: Compressor | None, limit_s: float
) -> Iterator[Outcome]:
    """Run a program, or its tests in one launch, and those that did not pass in one of their own.

    Parameters
    ----------
    program : of the catalogue
    sources : the checkout
    compressor : None for Horovod's own ``Compression.none``
    limit_s : seconds of a launch, after which its ranks are killed
    """
    for found in _launch(program, sources, compressor, limit_s):
        name = base_name(found.name, list(program.tests))
        if name is None or len(program.tests) == 1 or found.end in ("passed", "skipped"):
            yield found
            continue
        alone = _launch(replace(program, tests=(name,)), sources, compressor, limit_s)
        yield next((again for again in alone if again.name == found.name), found)


def _launch(
    program: Program, sources: Path, compressor: Compressor | None, limit_s: float
) -> list[Outcome]:
    way = compressor.method if compressor else "none"
    with tempfile.TemporaryDirectory(prefix="hvd-sparse-suite-") as folder:
        script = _prepare(program, sources, compressor, Path(folder))
        module = [sys.executable, "-m", "benchmarks.horovod_suite.program", program.framework]
        what = ["--tests", str(script), *program.tests] if program.tests else [str(script)]
        command = [*_launcher(program, Path(folder)), *module, *what, *program.arguments]
        code, printed = run_limited(command, _environment(folder), limit_s)
        if not program.tests:
            end = "passed" if code == 0 else "did not end" if code is None else "failed"
            return [Outcome(program.path, "", way, end, "" if code == 0 else printed[-SHOWN:])]
        return _outcomes(program, way, Path(folder), printed)


def _prepare(program: Program, sources: Path, compressor: Compressor | None, folder: Path) -> Path:
    """Write the program as it is run, with what lies beside it; return its path."""
    script = folder / program.path
    script.parent.mkdir(parents=True)
    if program.tests:
        shutil.copytree(sources / "test" / "utils", folder / "test" / "utils")
        for base in (sources / program.path).parent.glob("base_*.py"):
            shutil.copy(base, script.parent)
    text = shorten((sources / program.path).read_text(encoding="utf-8"), program.constants)
    if compressor:
        text = with_compression(text, replace(compressor, framework=program.framework))
    script.write_text(text, encoding="utf-8")
    return script


def _launcher(program: Program, folder: Path) -> list[str]:
    launcher = [str(Path(sys.executable).parent / "horovodrun"), "--gloo", "-np", str(RANKS)]
    if not program.elastic:
        return [*launcher, "-H", f"localhost:{RANKS}"]
    script = folder / "hosts"  # as an elastic run takes hosts of one slot from a script alone
    script.write_text("#!/bin/sh\necho localhost:1\necho 127.0.0.1:1\n", encoding="utf-8")
    script.chmod(0o755)
    world = ["--min-np", str(RANKS), "--max-np", str(RANKS)]
    return [*launcher, *world, "--host-discovery-script", str(script)]


def _environment(folder: str) -> dict[str, str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    ours = {"PATH": path, "PYTHONPATH": str(ROOT), RESULTS: folder, "HOME": folder}
    return {**os.environ, **SETTINGS, **ours}


def _outcomes(program: Program, way: str, folder: Path, printed: str) -> list[Outcome]:
    """Return what every test came to: the worst of all ranks."""
    found: dict[str, tuple[str, str]] = {}
    for path in sorted(folder.glob("outcomes.*.json")):
        for name, (end, words) in json.loads(path.read_text(encoding="utf-8")).items():
            if ENDS[end] > ENDS.get(found.get(name, ("", ""))[0], 0):
                found[name] = (end, words)
    for name in program.tests:
        if not any(base_name(each, [name]) for each in found):
            found[name] = ("did not end", printed[-SHOWN:])
    return [
        Outcome(program.path, name, way, end.replace("error", "failed"), words)
        for name, (end, words) in found.items()
    ]
