"""Starts real ranks with a time limit.

A worker script runs on every rank; what it passes to ``report`` is that rank's result. After the
time limit, the launcher's whole process group is killed, because ``horovodrun`` can ignore other
signals. Before that, every process writes the stacks of its threads. A process that dies of a
signal writes them by itself (``sitecustomize``). The stacks are printed with the failure.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = "HVD_SPARSE_TEST_RESULTS"
NATIVE_STACKS = "HVD_SPARSE_TEST_NATIVE_STACKS"
WRITING_S = 10.0
"""Seconds within which a process writes its stacks, unless it is suspended."""
SLOWNESS = "HVD_SPARSE_TEST_SLOWNESS"
DEVICE = "HVD_SPARSE_TEST_DEVICE"
PATHS = (str(ROOT), str(ROOT / "tests"))
LIMIT_S = 2400.0
"""Time limit of a launch in seconds. It is so long that only a hang reaches it, even if the machine
is busy and compiles all kernels."""
WORK, USUAL_S = "import numpy", 0.15
"""A command that measures the slowness, and its seconds on a machine without other work."""
CONTROLLERS = ("mpi", "gloo")
FRAMEWORKS = {"torch": "torch", "tensorflow": "tensorflow", "keras": "tensorflow"}
"""Words in the names of scripts, and the framework with which Horovod must be built for them."""


@dataclass(frozen=True)
class Outcome:
    """The result of a launch: the exit code (None if it was killed), each rank's report, the
    output, and the stacks of processes that died of a signal or were killed."""

    code: int | None
    results: list[Any]
    output: str
    stacks: str

    def check(self) -> list[Any]:
        assert self.code == 0, self.end
        assert None not in self.results, f"a rank reported nothing\n{self.end}"
        return self.results

    @property
    def end(self) -> str:
        """Text about the end of the launch, which a failed test prints."""
        return f"exit code {self.code}\n{self.output[-6000:]}\n{self.stacks}"


def slow(seconds: float) -> float:
    """Return the seconds multiplied by the slowness of a busy machine. The factor is measured
    before a launch, so it is the same on all ranks."""
    return seconds * float(os.environ.get(SLOWNESS) or _measured_slowness())


def _measured_slowness() -> float:
    start = time.monotonic()
    subprocess.run([sys.executable, "-c", WORK], check=True)
    return max(1.0, (time.monotonic() - start) / USUAL_S)


def launch(
    worker: str, ranks: int, controller: str, *arguments: str, limit_s: float = LIMIT_S
) -> Outcome:
    """Run ``tests/<worker>`` on ``ranks`` processes under "mpi" (mpirun), "gloo" (horovodrun) or
    "torchrun". The test is skipped if Horovod was built without this launcher, or without the
    framework in the worker's name."""
    _require_framework(" ".join((Path(worker).name, *arguments[:1])))
    return _run(_launcher(ranks, controller), ranks, *_script(worker), *arguments, limit_s=limit_s)


def launch_example(script: str, ranks: int, controller: str, *arguments: str) -> Outcome:
    """Run ``examples/<script>``, whose ranks have no results."""
    _require_framework(script)
    program = (sys.executable, str(ROOT / "examples" / script))
    return _run(_launcher(ranks, controller), ranks, *program, *arguments)


def launch_elastic(
    worker: str,
    hosts: Sequence[str],
    min_ranks: int,
    *arguments: str,
    silence_s: float,
    limit_s: float = LIMIT_S,
) -> Outcome:
    """Run an elastic worker with one process on each host, as long as there are ``min_ranks``. A
    host is used again some time after its process has died.

    hosts : names of this machine
    silence_s : time limit after which a silent rank is given up, on a machine without other work;
        it is multiplied by the slowness of the machine. A new worker must start within this time,
        or Horovod aborts the ranks that wait for it
    """
    _require_framework(" ".join((Path(worker).name, *arguments[:1])))
    with tempfile.TemporaryDirectory(prefix="hvd-") as folder:
        discover = Path(folder) / "discover"
        discover.write_text("#!/bin/sh\n" + "".join(f"echo {host}:1\n" for host in hosts))
        discover.chmod(0o755)
        launcher = [*_launcher(len(hosts), "gloo"), "--host-discovery-script", str(discover)]
        launcher += ["--min-np", str(min_ranks), "--max-np", str(len(hosts))]
        slowness = _measured_slowness()
        # Horovod never restarts the process of a host whose time on the blacklist ends before the
        # launcher has assigned the hosts anew, for which it waits for the script above.
        banned_s = round(3 * slowness)
        launcher += ["--blacklist-cooldown-range", str(banned_s - 1), str(banned_s)]
        launcher += ["--gloo-timeout-seconds", str(round(silence_s * slowness))]
        return _run(launcher, len(hosts), *_script(worker), *arguments, limit_s=limit_s)


def _script(worker: str) -> tuple[str, str]:
    return sys.executable, str(ROOT / "tests" / worker)


def _run(launcher: list[str], ranks: int, *program: str, limit_s: float = LIMIT_S) -> Outcome:
    # A process that was killed may still write to the folder while it is deleted.
    with tempfile.TemporaryDirectory(prefix="hvd-", ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(
            [*launcher, *program],
            cwd=ROOT,
            env={
                **os.environ,
                **launch_environment(),
                RESULTS: folder,
                "TMPDIR": folder,  # for temporary files of the ranks, which are deleted with it
                SLOWNESS: str(_measured_slowness()),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, code = process.communicate(timeout=limit_s)[0], process.returncode
        except subprocess.TimeoutExpired:
            code = None
            write_stacks(Path(folder))
            _kill(process, Path(folder))
            output = process.communicate()[0] + f"\n(killed after {limit_s} s)"
        except BaseException:  # Ctrl-C, which does not reach the launch's own session
            _kill(process, Path(folder))
            process.communicate()
            raise
        results = [_read(Path(folder) / f"{rank}.json") for rank in range(ranks)]
        return Outcome(code, results, output, read_stacks(Path(folder)))


def _kill(process: subprocess.Popen[str], folder: Path) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    for path in filter(_is_there, folder.glob("*.stacks")):
        os.kill(_number_in(path), signal.SIGKILL)  # mpirun's ranks are in other groups


def write_stacks(folder: Path) -> None:
    """Let every process of a launch write the stacks of its threads, and wait for them."""
    sizes = {path: path.stat().st_size for path in folder.glob("*.stacks") if _is_there(path)}
    for path in sizes:
        os.kill(_number_in(path), signal.SIGUSR1)
    until_s = time.monotonic() + WRITING_S
    while time.monotonic() < until_s and any(p.stat().st_size == sizes[p] for p in sizes):
        time.sleep(0.05)
    if sizes:
        time.sleep(0.5)  # each has begun to write


def read_stacks(folder: Path) -> str:
    written = {path.stem: path.read_text(errors="replace") for path in folder.glob("*.stacks")}
    return "\n".join(f"== stacks of {name}\n{text}" for name, text in written.items() if text)


def _number_in(path: Path) -> int:
    return int(path.stem.rpartition(".")[2])


def _is_there(path: Path) -> bool:
    """Return whether the process that has a file of stacks still runs. Its number may meanwhile
    belong to another process."""
    try:
        return str(path.parent).encode() in Path(f"/proc/{_number_in(path)}/environ").read_bytes()
    except OSError:
        return False


@cache
def _native_stacks() -> str:
    """Compile the library for native stacks; return its path, or "" without a C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return ""
    folder = tempfile.mkdtemp(prefix="hvd-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    source, library = ROOT / "tests" / "native_stacks.c", f"{folder}/native_stacks.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, str(source)], check=True)
    return library


def report(rank: int, result: Any) -> None:
    """Workers call it to report their rank's JSON-serializable result. The last one counts."""
    path = Path(os.environ[RESULTS]) / f"{rank}.json"
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(result))
    partial.replace(path)


def say(event: str) -> None:
    """Tell the other ranks of a launch that an event has happened. Workers call it."""
    (Path(os.environ[RESULTS]) / f"{event}.said").touch()


def wait_for(event: str) -> None:
    """Sleep until a rank has called ``say`` for this event. Workers call it."""
    while not (Path(os.environ[RESULTS]) / f"{event}.said").exists():
        time.sleep(0.02)


def _read(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else None


def _require(part: str) -> None:
    from installed import horovod_parts

    if part not in horovod_parts():
        import pytest  # here, as ranks and scripts/gpu-check load this module without it

        pytest.skip(f"Horovod was built without {part}")


def _require_framework(name: str) -> None:
    for word, part in FRAMEWORKS.items():
        if word in name:
            _require(part)


def _launcher(ranks: int, controller: str) -> list[str]:
    if controller in CONTROLLERS:
        _require(controller)
    if controller == "mpi":
        # more ranks than cores: without yielding, waiting ranks keep the working ones from theirs
        yielding = "--mca mpi_yield_when_idle 1 --bind-to none"
        return ["mpirun", "--oversubscribe", *yielding.split(), "-np", str(ranks)]
    if controller == "gloo":
        return [sys.executable, str(ROOT / "tests" / "horovodrun.py"), "--gloo", "-np", str(ranks)]
    if controller == "torchrun":
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"]
        return [*launcher, "--nproc-per-node", str(ranks)]
    raise ValueError(f"no controller is called {controller!r}")


def launch_environment() -> dict[str, str]:
    threads = dict.fromkeys(
        ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "OPENBLAS_NUM_THREADS"), "1"
    )
    return {
        **threads,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONPATH": os.pathsep.join(filter(None, [*PATHS, os.environ.get("PYTHONPATH")])),
        "PYTHONDONTWRITEBYTECODE": "",  # the package is compiled once, not by every rank
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "TF_USE_LEGACY_KERAS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TF_ENABLE_ONEDNN_OPTS": "0",
        **({} if os.environ.get(DEVICE) == "cuda" else {"CUDA_VISIBLE_DEVICES": ""}),
        NATIVE_STACKS: _native_stacks(),
    }
