"""Real ranks on this machine, over Gloo or, if Horovod was built without Gloo, over MPI. Each rank
reports its results as JSON."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from importlib import metadata, util
from pathlib import Path
from typing import Any

from benchmarks._limited import ROOT, run_limited

RESULTS = "HVD_SPARSE_BENCH_RESULTS"
NAMES = {"gloo": "Gloo", "mpi": "MPI"}
SHOWN = 4000
"""Number of last characters of a failed launch's output that an error shows."""

SETTINGS = {
    **dict.fromkeys(
        ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"),
        "1",
    ),
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "TF_USE_LEGACY_KERAS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_ENABLE_ONEDNN_OPTS": "0",
}
"""Environment of every rank. Each rank computes with one thread, because ranks share the cores."""


def launch(module: str, ranks: int, *arguments: str, limit_s: float) -> list[Any]:
    """Run ``python -m MODULE ARGUMENTS`` on ``ranks`` ranks, and return what each passed to
    ``report``. Raises RuntimeError if the launch fails or exceeds ``limit_s``."""
    with tempfile.TemporaryDirectory(prefix="hvd-sparse-bench-") as folder:
        command = [*_launcher(ranks), sys.executable, "-m", module, *arguments]
        environment = {**os.environ, **_environment(), RESULTS: folder}
        code, printed = run_limited(command, environment, limit_s)
        files = [_file_of(folder, rank) for rank in range(ranks)]
        if code == 0 and all(file.exists() for file in files):
            return [json.loads(file.read_text(encoding="utf-8")) for file in files]
    how = f"was killed after {limit_s:g} s" if code is None else f"ended with {code}"
    raise RuntimeError(f"{module} on {ranks} ranks {how}:\n{printed[-SHOWN:]}")


def horovod_version() -> str:
    return f"{metadata.version('horovod')} over {NAMES[_controller()]}"


def _controller() -> str:
    """Return "gloo", or "mpi" if Horovod's libraries do not contain the class of Gloo."""
    found = util.find_spec("horovod")
    folders = (found and found.submodule_search_locations) or ()
    libraries = [path for each in folders for path in Path(each).glob("*/mpi_lib*.so")]
    return "gloo" if any(b"GlooController" in path.read_bytes() for path in libraries) else "mpi"


def _launcher(ranks: int) -> list[str]:
    if _controller() == "gloo":
        return [str(Path(sys.executable).parent / "horovodrun"), "--gloo", "-np", str(ranks)]
    # a one-element allreduce of 4 ranks on 2 cores took 36 ms without yielding, and 1 ms with it
    yielding = ["--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
    return ["mpirun", *yielding, "--bind-to", "none", "-np", str(ranks)]


def report(rank: int, found: Any) -> None:
    """Pass a rank's JSON-serializable results to ``launch``. A rank calls this once, at its end."""
    _file_of(os.environ[RESULTS], rank).write_text(json.dumps(found), encoding="utf-8")


def _file_of(folder: str, rank: int) -> Path:
    return Path(folder) / f"{rank}.json"


def _environment() -> dict[str, str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**SETTINGS, "PATH": path, "PYTHONPATH": str(ROOT)}
