"""Checks on a machine with a GPU: the work of ``scripts/gpu-check``.

Every check says "passed", "FAILED" or "NOT RUN", and why.  None of it has run on a GPU yet.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks._gpu_page import NOT_WRITTEN, Result, draw, page, table

ROOT = Path(__file__).resolve().parents[1]
ENGINES = ("torch", "triton")
SIZES = ("1000000", "25000000", "100000000")
RANKS = 2
NOT_RUN = 3


def gpu() -> str | None:
    """Return the GPU's name; None where torch has none."""
    script = (
        "import torch; print(torch.cuda.get_device_name(0) if torch.cuda.is_available() else '')"
    )
    done = run([sys.executable, "-c", script], 120)
    return done.stdout.strip() or None


def run(command: list[str], limit_s: float, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command with the package and the tests' modules; one that takes too long has failed."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=limit_s,
            env={**os.environ, "PYTHONPATH": path, **environment},
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, -1, "", f"not done after {limit_s:.0f} s")


def check(name: str, command: list[str], limit_s: float = 900) -> Result:
    """Run a worker's task."""
    done = run(command, limit_s)
    if done.returncode == 0:
        return Result(name, "passed", done.stdout)
    return Result(name, "FAILED", (done.stdout + done.stderr)[-3000:])


def worker(task: str, *arguments: str) -> list[str]:
    """Return the command of a task."""
    return [sys.executable, str(ROOT / "tests" / "devices" / "gpu_worker.py"), task, *arguments]


def check_laws(early: str) -> list[Result]:
    """Put PyTorch's laws to gradients on the GPU, on two ranks, by both wires.

    Ranks share a GPU where there is one alone, and NCCL wants one a rank.

    Parameters
    ----------
    early : "1" lets Horovod say that it is done before its results are there; else "0"
    """
    os.environ.update(HVD_SPARSE_TEST_DEVICE="cuda", HOROVOD_ENABLE_ASYNC_COMPLETION=early)
    sys.path.insert(0, str(ROOT / "tests"))
    from harness import launch  # the tests' own, which kills ranks that hang

    mode = ", HOROVOD_ENABLE_ASYNC_COMPLETION" if early == "1" else ""
    outcome = launch("frontends/torch_devices.py", RANKS, "gloo", limit_s=900)
    results = []
    for wire, words in WIRES.items():
        name = f"PyTorch's laws on {RANKS} ranks, {words}{mode}"
        if outcome.code != 0 or None in outcome.results:
            results.append(Result(name, "FAILED", outcome.output[-3000:]))
            continue
        judged = [judge(case, each, wire) for r in outcome.results for case, each in r.items()]
        wrong = sorted({each for each in judged if each})
        if wrong:
            results.append(Result(name, "FAILED", "\n".join(wrong)))
        elif None in judged:
            results.append(Result(name, "NOT RUN", NO_NCCL))
        else:
            results.append(Result(name, "passed", ""))
    return results


def judge(case: str, outcome: dict[str, Any], wire: str) -> str | None:
    """Return what is wrong with a case; nothing where it is right, None where it was not run."""
    if "measured" not in outcome:
        return f"{case}: {outcome.get('error', 'nothing came of it')}"
    measured = outcome["measured"]
    if case == "collectives":
        if not measured:
            return None
        return "" if all(each[0] for each in measured.values()) else f"{case}: other bytes"
    if "expected" not in measured:
        return ""
    if wire not in measured:
        return None
    expected, found = measured["expected"], measured[wire]
    if any(found[key] != expected[key] for key in expected if key not in IGNORED):
        return f"{case}: other bits than on the CPU"
    return ""


WIRES = {"found": "messages through the host", "carried": "messages over NCCL"}
"""What the laws report by each wire, and its name."""
NO_NCCL = "Horovod has no NCCL, or there are fewer GPUs than ranks"
IGNORED = ("ways", "waits", "wire")
"""Of a case: what differs between the devices as it must."""


def main(arguments: list[str]) -> int:
    """Return 0 if all that was run passed, 1 if something failed, 3 if nothing was run."""
    parser = argparse.ArgumentParser(prog="scripts/gpu-check", description=__doc__)
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "results" / "gpu.md")
    options = parser.parse_args(arguments)
    name = gpu()
    if name is None:
        print("NOT RUN: torch finds no GPU here, so nothing was checked")
        return NOT_RUN
    print(f"GPU: {name}")
    results, tables, times = [], [], {}
    for engine in ENGINES:
        results.append(check(f"conformance of engine {engine}", worker("conformance", engine)))
        results.append(check(f"hidden waits of engine {engine}", worker("waits", engine)))
    results += [each for early in ("0", "1") for each in check_laws(early)]
    for engine in ENGINES:
        timed = check(f"times of engine {engine}", worker("times", engine, *SIZES))
        results.append(timed)
        if timed.verdict == "passed":
            times[engine] = json.loads(timed.words)
            tables.append(table(times[engine], engine))
    for each in results:
        print(f"{each.verdict:<8} {each.name}")
        if each.verdict in ("FAILED", "NOT RUN"):
            print(each.words)
    for what in NOT_WRITTEN:
        print(f"NOT RUN  {what}: no check is written")
    picture = draw(times, options.page.with_suffix(".png"))
    if picture is None:
        print("NOT RUN  the picture: matplotlib is not installed, or nothing was timed")
    options.page.write_text(page(name, results, tables, picture), encoding="utf-8")
    print(f"written: {options.page}")
    return int(any(each.verdict == "FAILED" for each in results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
