"""Runs the checks of ``scripts/gpu-check`` on a machine with a GPU."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from devices.gpu_check import build, cub
from devices.gpu_check.checks import ENGINES, checks, run, time_engine, times_of
from devices.gpu_check.page import Result, draw, write
from harness import ROOT

NOT_RUN = 3
THERE = Result(build.NAME, "passed", "installed")


def gpu() -> str | None:
    script = (
        "import torch; print(torch.cuda.get_device_name(0) if torch.cuda.is_available() else '')"
    )
    done = run([sys.executable, "-c", script], 120)
    return done.stdout.strip() or None


def say(result: Result) -> None:
    print(f"{result.verdict:<8} {result.name}", flush=True)
    if result.verdict != "passed":
        print(result.words, flush=True)


def horovod(options: argparse.Namespace) -> Result:
    if options.built:
        return Result(build.NAME, "passed", "built by scripts/cuda-build")
    has = build.has_nccl()
    if options.build or (build.sees_gpu() and not has):
        print("building Horovod with NCCL: it takes a while", flush=True)
        result, python = build.build()
        if python is not None:
            sys.stdout.flush()
            folders, headers = build.tools(python)
            os.environ["PATH"] = os.pathsep.join([*folders, os.environ["PATH"]])
            os.environ.setdefault("CCCL", headers)
            command = [python, "-m", "devices.gpu_check", "--built", "--page", options.page]
            os.execv(python, list(map(str, command)))
        return result
    words = "the installed Horovod has none: --build builds one by scripts/cuda-build"
    return THERE if has else Result(build.NAME, "NOT RUN", words)


def main(arguments: list[str]) -> int:
    """Return the exit code: 0 if all checks that ran passed, 1 if a check failed, 3 if there is no
    GPU."""
    parser = argparse.ArgumentParser(prog="scripts/gpu-check", description=__doc__)
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "results" / "gpu.md")
    parser.add_argument("--build", action="store_true", help="build Horovod with NCCL")
    parser.add_argument("--built", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    results, times = [horovod(options)], {}
    say(results[0])
    name = gpu()
    if name is None:
        for each in (*checks(), cub.NAME, *map(times_of, ENGINES)):
            print(f"NOT RUN  {each}")
        print("torch finds no GPU here, so nothing was checked on one")
        return 1 if results[0].verdict == "FAILED" else NOT_RUN
    print(f"GPU: {name}")
    for what, check in checks().items():
        for result in check(what):
            results.append(result)
            say(result)
    with tempfile.TemporaryDirectory() as folder:
        compiled, library = cub.build(Path(folder))
        results.append(compiled)
        say(compiled)
        for engine in ENGINES:
            timed, lines = time_engine(engine, library)
            results.append(timed)
            say(timed)
            if lines is not None:
                times[engine] = lines
    if draw(times, options.page.with_suffix(".png")) is None:
        print("NOT RUN  the picture: matplotlib is not installed, or nothing was timed")
    write(options.page, name, results, times)
    print(f"written: {options.page}")
    return int(any(each.verdict == "FAILED" for each in results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
