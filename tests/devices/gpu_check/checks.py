"""The checks of ``scripts/gpu-check`` by name. Each returns a list of results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from devices.gpu_check.page import Lines, Result
from harness import PATHS, ROOT, launch
from installed import horovod_parts

ENGINES = ("torch", "triton")
SIZES = ("1000000", "25000000", "100000000")
RANKS = 2
ON_A_GPU = {"HVD_SPARSE_TEST_DEVICE": "cuda"}
STALL = "the stall in Horovod's AllocateOutput"
PLACEMENT = "TensorFlow's placement on a GPU"
WIRES = {"found": "messages through the host", "carried": "messages over NCCL"}
"""Keys under which the laws report the results with each wire, and the names of the wires."""
NO_NCCL = "Horovod has no NCCL"
NO_TENSORFLOW = "Horovod was built without TensorFlow"
NO_GPU = "TensorFlow finds no GPU: one built for this CUDA does, in an environment of its own"
IGNORED = ("ways", "waits", "wire", "in_backward", "because")
"""Keys of a case whose values differ between the devices by design."""
OTHER_DIGITS = {"muon": {"applied"}}
"""Results, by case, whose last digits differ on a device, because it multiplies matrices in
bfloat16. They are the same on all ranks."""
REFUSED = "engine 'triton' works on vectors on a GPU"
"""Correct error of a compressor that copies all gradients to the host."""
NEVER_REFUSED = ("ldte_bs", "topk", "dgc", "training")
"""Cases whose gradients stay on the device, so that this error would be wrong."""
HELD_UP = 0.5
"""Fraction of the queued work's time. If a gather takes longer, it has waited for this work."""


def run(command: list[str], limit_s: float, **environment: str) -> subprocess.CompletedProcess[str]:
    own = os.environ.get("PYTHONPATH")
    path = os.pathsep.join(filter(None, [*PATHS, own]))
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


def work(
    name: str, task: str, engine: str, *sizes: str, limit_s: float = 900, **environment: str
) -> list[Result]:
    script = str(ROOT / "tests" / "devices" / "gpu_worker.py")
    done = run([sys.executable, script, task, engine, *sizes], limit_s, **environment)
    if done.returncode == 0:
        return [Result(name, "passed", done.stdout)]
    return [Result(name, "FAILED", (done.stdout + done.stderr)[-3000:])]


def on_ranks(worker: str, limit_s: float, **environment: str) -> tuple[list[Any], str]:
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        outcome = launch(worker, RANKS, "gloo", limit_s=limit_s)
    finally:
        os.environ.clear()
        os.environ.update(before)
    if outcome.code != 0 or None in outcome.results:
        return [], outcome.output[-3000:] or "nothing came of it"
    return outcome.results, ""


def check_laws(name: str, engine: str, early: str) -> list[Result]:
    """Check the laws with PyTorch for gradients on the GPU, on two ranks and with both wires."""
    environment = {
        **ON_A_GPU,
        "HVD_SPARSE_TEST_ENGINE": engine,
        "HOROVOD_ENABLE_ASYNC_COMPLETION": early,
    }
    reports, error = on_ranks("frontends/torch_devices.py", 900, **environment)
    results = []
    for wire, words in WIRES.items():
        each = f"{name}, {words}"
        if error:
            results.append(Result(each, "FAILED", error))
            continue
        judged = [judge(case, found, wire) for r in reports for case, found in r.items()]
        wrong = sorted({words for words in judged if words})
        if wrong:
            results.append(Result(each, "FAILED", "\n".join(wrong)))
        elif None in judged:
            results.append(Result(each, "NOT RUN", NO_NCCL))
        else:
            results.append(Result(each, "passed", ""))
    return results


def judge(case: str, outcome: dict[str, Any], wire: str) -> str | None:
    """Return a text that describes what is wrong with a case, an empty text if it is right, or None
    if it was not run."""
    if "measured" not in outcome:
        error = outcome.get("error", "nothing came of it")
        is_right = REFUSED in error and case not in NEVER_REFUSED
        return "" if is_right else f"{case}: {error}"
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
    ignored = {*IGNORED, *OTHER_DIGITS.get(case, ())}
    if any(found[key] != expected[key] for key in expected if key not in ignored):
        return f"{case}: other bits than on the CPU"
    return ""


def check_stall(name: str) -> list[Result]:
    reports, error = on_ranks("frontends/torch_stall.py", 300, **ON_A_GPU)
    return [Result(name, "FAILED", error) if error else judge_stall(name, reports)]


def judge_stall(name: str, reports: list[dict[str, Any]]) -> Result:
    if not all(each["gathers"] for each in reports):
        return Result(name, "NOT RUN", NO_NCCL)
    slowest = {
        where: max(each["gathers"][where] for each in reports) for where in reports[0]["gathers"]
    }
    busy = reports[0]["busy"]
    words = ", ".join(f"{where} {seconds:.3f} s" for where, seconds in slowest.items())
    words = f"a gather behind {busy:g} s of queued work, by its stream: {words}"
    verdict = "FAILED" if slowest["own"] > HELD_UP * busy else "passed"
    return Result(name, verdict, words)


def check_placement(name: str) -> list[Result]:
    if "tensorflow" not in horovod_parts():
        return [Result(name, "NOT RUN", NO_TENSORFLOW)]
    reports, error = on_ranks("frontends/tensorflow_on_gpu.py", 300, **ON_A_GPU)
    return [Result(name, "FAILED", error) if error else judge_placement(name, reports)]


def judge_placement(name: str, reports: list[dict[str, Any]]) -> Result:
    if not all(reports):
        return Result(name, "NOT RUN", NO_GPU)
    ran = [found for each in reports for found in each["found"]["ran"].items()]
    elsewhere = sorted({kind for kind, devices in ran if devices != ["CPU:0"]})
    if not ran or elsewhere:
        where = ", ".join(elsewhere) or "none was seen"
        return Result(name, "FAILED", f"operations of ours off the CPU: {where}")
    if any(each["found"]["applied"] != each["expected"]["applied"] for each in reports):
        return Result(name, "FAILED", "other bits than on the CPU")
    return Result(name, "passed", f"on the CPU: {', '.join(sorted({kind for kind, _ in ran}))}")


def checks() -> Mapping[str, Callable[[str], list[Result]]]:
    found: dict[str, Callable[[str], list[Result]]] = {}
    for engine in ENGINES:
        found[f"conformance of engine {engine}"] = partial(work, task="conformance", engine=engine)
        found[f"hidden waits of engine {engine}"] = partial(work, task="waits", engine=engine)
    for engine, early in (("torch", "0"), ("torch", "1"), ("triton", "0")):
        mode = ", HOROVOD_ENABLE_ASYNC_COMPLETION" if early == "1" else ""
        name = f"PyTorch's laws on {RANKS} ranks, engine {engine}{mode}"
        found[name] = partial(check_laws, engine=engine, early=early)
    return {**found, STALL: check_stall, PLACEMENT: check_placement}


def time_engine(engine: str, cub: Path | None = None) -> tuple[Result, Lines | None]:
    environment = {} if cub is None else {"HVD_SPARSE_CUB_TOPK": str(cub)}
    (timed,) = work(times_of(engine), "times", engine, *SIZES, **environment)
    return timed, json.loads(timed.words) if timed.verdict == "passed" else None


def times_of(engine: str) -> str:
    return f"times of engine {engine}"
