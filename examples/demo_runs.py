"""A training run of the demo: start it by horovodrun, read its JSON lines, end its processes."""

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
TIME_LIMIT_S = 900  # for hangs: a run takes 10 to 40 s, and some minutes on a busy machine
GRACE_S = 3
TAIL_LINES = 25
WORKER_LINE = re.compile(r"\[(1,)?\d+\]<std")  # horovodrun's prefix, under Gloo and under MPI


class LaunchError(Exception):
    """A run failed or hung; the message names the run and shows the end of its log."""


class Run:
    """A run of one method; ``epochs`` and ``summary`` are the records that rank 0 wrote."""

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
        """Start the run, and yield the record of each epoch as soon as it is written.

        Raises LaunchError if the run fails, hangs or writes no summary.
        """
        self.json_path.write_text("")
        with open(self.log_path, "w") as log:
            # in a session of its own, so that all of its processes can be ended
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
            if not text.endswith("\n"):  # no line yet, or only a part of it
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
        ]  # without the long traceback that the launcher adds
        tail = "\n".join(f"    {line}" for line in (said_by_workers or lines)[-TAIL_LINES:])
        remedy = f"read {self.log_path}, or run it by hand:\n    {' '.join(self.command)}"
        return LaunchError(
            f"the run {self.name} {what}; its log ends with\n{tail}\n    what to do: {remedy}"
        )


def hosts_apart(args, rate):
    """Return the prefix of a command that gives each worker its own host, with links of ``rate``.

    The hosts are network namespaces of this machine.
    """
    module = "benchmarks.network.cluster"
    return [sys.executable, "-m", module, f"--hosts={args.np}", f"--rate={rate}", "--"]


def why_not(command):
    """Return the reason why a command with the prefix of ``hosts_apart`` cannot run, or None."""
    missing = [tool for tool in ("ip", "tc", "unshare", "setpriv") if shutil.which(tool) is None]
    if missing:
        return f"{missing[0]} is missing: apt-get install iproute2 util-linux"
    done = subprocess.run(
        [*command, "true"], capture_output=True, text=True, check=False, env=environment()
    )
    said = done.stderr.strip().splitlines()
    return None if done.returncode == 0 else said[-1] if said else f"exit code {done.returncode}"


def environment():
    """Return the environment for workers that share the cores of this machine."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        # allow more workers than cores, and let waiting workers leave their core to others
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",
    }


def end(process):
    """End the launcher and all processes that it started.

    Signals to the launcher are not enough, because horovodrun can ignore SIGTERM, and its workers
    are in other sessions.
    """
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
    """Send a signal to a process group. The group may have ended, or only its leader."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, number)
