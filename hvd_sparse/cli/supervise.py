"""The supervision of mpirun, which by itself may wait for ever after every rank has ended.

It does so for the daemon of a host that is frozen or unreachable.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import psutil  # type: ignore[import-untyped] # Horovod depends on it

NAMES = ("mpirun", "orterun", "prterun")
GRACE_S = 10.0
"""Seconds for which mpirun may have no rank or ssh session before it is ended."""
ANSWER_S = 10.0


def supervise(
    command: Sequence[str],
    environment: Mapping[str, str],
    asking: Mapping[str, Sequence[str]],
    grace_s: float = GRACE_S,
) -> int:
    """Run a command that starts mpirun, and end mpirun if only a silent host keeps it.

    Parameters
    ----------
    command : to run
    environment : of the command
    asking : for every host, a command that ends with 0 if the host answers
    grace_s : seconds for which mpirun may have no rank or ssh session

    Returns
    -------
    The command's exit code; 1 if mpirun was ended
    """
    process = subprocess.Popen(list(command), env=dict(environment))
    signal.signal(signal.SIGINT, lambda *_: None)  # a terminal sends it to mpirun too
    # and a signal to this process alone has to be handed on
    signal.signal(signal.SIGTERM, lambda *_: _terminate(process.pid))
    has_worked, bare_since = False, time.monotonic()
    while True:
        try:
            code = process.wait(timeout=1.0)
            break
        except subprocess.TimeoutExpired:
            pass
        launchers = [p for p in _family(process.pid) if _name(p) in NAMES]
        if not launchers or any(_children(launcher) for launcher in launchers):
            # mpirun has no children before its first rank or ssh session either: that is no end
            has_worked = has_worked or bool(launchers)
            bare_since = time.monotonic()
        elif has_worked and time.monotonic() - bare_since > grace_s:
            return _end(process, asking)
    if code != 0:
        silent = _silent(asking)
        if silent:
            _say(
                f"{silent} does not answer: it is down, frozen, or cut off from the network, and "
                "the job ended by it"
            )
    # of a process that a signal ended, as shells tell it
    return code if code >= 0 else 128 - code


def _end(process: subprocess.Popen[bytes], asking: Mapping[str, Sequence[str]]) -> int:
    silent = _silent(asking)
    who = f"{silent}, which does not answer" if silent else "a host that did not answer for a while"
    _say(
        f"every rank that could be reached has ended, and mpirun still waits for {who}: frozen, or "
        "cut off from the "
        "network. mpirun is ended now; the ranks' last words are above. End what is left on that "
        "host by hand"
    )
    for member in _family(process.pid):
        try:
            member.kill()
        except psutil.NoSuchProcess:
            continue
    process.wait()
    return 1


def _say(words: str) -> None:
    sys.stderr.write(f"hvd-sparse: {words}\n")
    sys.stderr.flush()


def _silent(asking: Mapping[str, Sequence[str]]) -> str:
    """Return the hosts that do not answer, in words; all are asked at once."""
    with ThreadPoolExecutor(max(1, len(asking))) as pool:
        answers = list(pool.map(_answers, asking.values()))
    names = [repr(host) for host, answer in zip(asking, answers) if not answer]
    return f"host {', '.join(names)}" if names else ""


def _terminate(pid: int) -> None:
    """End mpirun, which ends its ranks, and not the shell that horovodrun puts before it."""
    family = _family(pid)
    for member in [member for member in family if _name(member) in NAMES] or family[:1]:
        try:
            member.terminate()
        except psutil.NoSuchProcess:
            continue


def _answers(question: Sequence[str]) -> bool:
    try:
        return (
            subprocess.run(
                list(question), capture_output=True, timeout=ANSWER_S, check=False
            ).returncode
            == 0
        )
    except subprocess.TimeoutExpired:
        return False


def _family(pid: int) -> list[psutil.Process]:
    try:
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [child for child in process.children() if child.status() != psutil.STATUS_ZOMBIE]
    except psutil.NoSuchProcess:
        return []


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.NoSuchProcess:
        return ""
