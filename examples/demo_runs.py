"""One training run of the demo: launched by horovodrun, followed through its JSON lines, and always
ended."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
LAUNCHERS = ("gloo", "mpi")
TIME_LIMIT_S = 900  # only a hang meets it: a run takes 10 to 40 s, and minutes on a busy machine
GRACE_S = 3
TAIL_LINES = 25
WORKER_LINE = re.compile(r"\[(1,)?\d+\]<std")  # as horovodrun marks them, under Gloo and under MPI


class LaunchError(Exception):
    """A run failed or hung; the message says which, and shows the end of its log."""


class Run:
    """A run of one method; ``epochs`` and ``summary`` are what rank 0 reported."""

    def __init__(self, args, command, name, wire=()):
        self.name = name
        self.json_path = args.output.absolute() / f"{name}.jsonl"
        self.log_path = args.output / f"{name}.log"
        launch = [
            str(Path(sys.executable).with_name("horovodrun")),
            "-np",
            str(args.np),
            f"--{args.launcher}",
        ]
        if wire:  # a host for every worker
            hosts = ",".join(f"host{number}:1" for number in range(1, args.np + 1))
            launch += ["-H", hosts, "--network-interfaces", "eth0"]
        self.command = [*wire, *launch, *command, f"--log-json={self.json_path}"]
        self.epochs = []
        self.summary = None

    def follow(self):
        """Launch, and give the line of each epoch as it comes; raise LaunchError unless all ends
        well."""
        self.json_path.write_text("")
        with open(self.log_path, "w") as log:
            # a session of its own, so that the whole of it can be ended
            process = subprocess.Popen(
                self.command, stdout=log, stderr=log, env=environment(), start_new_session=True
            )
        deadline = time.monotonic() + TIME_LIMIT_S
        try:
            with open(self.json_path) as lines:
                while process.poll() is None:
                    yield from self._read(lines)
                    if time.monotonic() > deadline:
                        raise self._error(f"did not end within {TIME_LIMIT_S} s")
                    time.sleep(0.1)
                yield from self._read(lines)
        finally:
            end(process)
        if process.returncode != 0:
            raise self._error(f"failed with exit code {process.returncode}")
        if self.summary is None:  # under Gloo a job that lost its workers can still exit with 0
            raise self._error("ended without a summary")

    def _read(self, lines):
        while True:
            position = lines.tell()
            text = lines.readline()
            if not text.endswith("\n"):  # not there, or not completely
                lines.seek(position)
                return
            line = json.loads(text)
            if line["event"] == "summary":
                self.summary = line
            else:
                self.epochs.append(line)
                yield line

    def _error(self, what):
        lines = self.log_path.read_text(errors="replace").splitlines()
        said_by_workers = [
            line for line in lines if WORKER_LINE.match(line)
        ]  # the launcher adds a long traceback
        tail = "\n".join(f"    {line}" for line in (said_by_workers or lines)[-TAIL_LINES:])
        remedy = f"read {self.log_path}, or run it by hand:\n    {' '.join(self.command)}"
        return LaunchError(
            f"the run {self.name} {what}; its log ends with\n{tail}\n    what to do: {remedy}"
        )


def hosts_apart(args, rate):
    """Give the command under which each worker has a host of its own, with a link of ``rate``: they
    are network namespaces of this machine."""
    module = "benchmarks.network.cluster"
    return [sys.executable, "-m", module, f"--hosts={args.np}", f"--rate={rate}", "--"]


def why_not(command):
    """Give the reason why a command cannot run, as it says it itself; nothing if it can."""
    missing = [tool for tool in ("ip", "tc", "unshare", "setpriv") if shutil.which(tool) is None]
    if missing:
        return f"{missing[0]} is missing: apt-get install iproute2 util-linux"
    done = subprocess.run(
        [*command, "true"], capture_output=True, text=True, check=False, env=environment()
    )
    said = done.stderr.strip().splitlines()
    return None if done.returncode == 0 else said[-1] if said else f"exit code {done.returncode}"


def environment():
    """Give the workers' environment: several of them share the cores of this machine."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        # more workers than cores: allowed, and they must not burn the core another one needs
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",
    }


def end(process):
    """End the launcher and all it started: horovodrun can ignore SIGTERM, and its workers are in
    other sessions."""
    family = []
    with contextlib.suppress(psutil.NoSuchProcess):
        launcher = psutil.Process(process.pid)
        family = [launcher, *launcher.children(recursive=True)]
    signal_group(process.pid, signal.SIGTERM)
    _, alive = psutil.wait_procs(family, timeout=GRACE_S)
    for survivor in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            survivor.kill()
    signal_group(process.pid, signal.SIGKILL)
    process.wait()


def signal_group(leader, number):
    """Signal a process group, which may have outlived its leader or be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, number)
