"""Runs workers as forks of one process that has already loaded torch, Triton and numba, because
loading them takes seconds."""

from __future__ import annotations

import atexit
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from functools import cache
from typing import IO, Any

from harness import LIMIT_S
from installed import python_path, with_triton

ON_THE_CPU = {"HVD_SPARSE_TEST_DEVICE": "cpu"}
"""Environment of workers that could use a real device. Workers with it share one process."""


def run_worker(
    module: str, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    process = _started(tuple(sorted(environment.items())))
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(json.dumps([module, arguments]) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
    except BaseException:  # a time limit: the answer is not to be another run's
        _end(process)
        _started.cache_clear()
        raise
    assert line, f"the process that is forked ended with {process.wait()}"
    code, printed, said = json.loads(line)
    return subprocess.CompletedProcess([module, *arguments], code, printed, said)


def told_by(module: str, *arguments: str, **environment: str) -> Any:
    """Return what a worker, which must end well, prints as JSON."""
    done = run_worker(module, *arguments, **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout or "null")


def interpreted() -> dict[str, str]:
    return {**with_triton(), **ON_THE_CPU, "TRITON_INTERPRET": "1"}


@cache
def _started(environment: tuple[tuple[str, str], ...]) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **python_path(), **dict(environment)},
    )
    atexit.register(_end, process)
    return process


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()  # closes the pipes, and waits


def _run(module: str, arguments: list[str]) -> tuple[int, str, str]:
    with tempfile.TemporaryFile() as printed, tempfile.TemporaryFile() as said:
        child = os.fork()
        if not child:
            _be_the_child(module, arguments, printed, said)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        texts = []
        for file in (printed, said):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return code, *texts


def _be_the_child(module: str, arguments: list[str], printed: IO[bytes], said: IO[bytes]) -> None:
    code = 1
    try:
        signal.alarm(round(LIMIT_S))  # which ends it
        for file, number in ((printed, 1), (said, 2)):
            os.dup2(file.fileno(), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        importlib.import_module(module).main(*arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed here is no answer
    for line in sys.stdin:
        module, arguments = json.loads(line)
        importlib.import_module(module)
        print(json.dumps(_run(module, arguments)), file=answers, flush=True)


if __name__ == "__main__":
    main()
