"""Commands with a time limit, after which they and all their children are killed."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run_limited(
    command: Sequence[str], environment: Mapping[str, str], limit_s: float
) -> tuple[int | None, str]:
    """Run a command; return its exit code (None if the time limit was exceeded) and its output."""
    process = subprocess.Popen(
        list(command),
        cwd=ROOT,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output = process.communicate(timeout=limit_s)[0]
    except BaseException as error:  # also Ctrl-C, which does not reach the command's own session
        os.killpg(process.pid, signal.SIGKILL)
        output = process.communicate()[0]
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        return None, output
    return process.returncode, output
