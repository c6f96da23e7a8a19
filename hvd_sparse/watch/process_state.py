"""The operating system's state of a process, read from ``/proc`` without that process's help.

A process whose code holds Python's lock answers nobody, just as a suspended process does.  The
operating system tells the two apart: it says which process is stopped, and counts the processor
time of all threads, of which a thread that waits for the lock takes some every few milliseconds.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

STOPPED = ("T", "t")
ENDED = ("Z", "X", "x")
STATE, TIMES, START = 0, slice(11, 13), 19
"""Positions of fields in ``/proc/PID/stat`` after the command, which may hold blanks and
brackets."""


@dataclass(frozen=True)
class Process:
    """A process, and the system on which it can be seen.

    Attributes
    ----------
    system : boot of the operating system and namespace of process numbers; processes with the same
        one see each other
    number : number of the process
    start : start of the process in clock ticks, as numbers are used again
    """

    system: str
    number: int
    start: int


@dataclass(frozen=True)
class ProcessState:
    """The state of a process at one moment.

    Attributes
    ----------
    state : letter of ``/proc/PID/stat`` for the main thread
    ran : processor time that the threads have had: in clock ticks, and in nanoseconds
    """

    state: str
    ran: tuple[int, ...]


def this_process() -> Process | None:
    """Return this process, as others can find it; None where the system has no ``/proc``."""
    try:
        system = (
            Path("/proc/sys/kernel/random/boot_id").read_text().strip()
            + " "
            + os.readlink("/proc/self/ns/pid")
        )
        return Process(system, os.getpid(), int(_fields_of(os.getpid())[START]))
    except (OSError, ValueError, IndexError):
        return None


def look_at(process: Process | None) -> ProcessState | None:
    """Return the state of a process; None if it is on another system, or is not there."""
    here = this_process()
    if process is None or here is None or process.system != here.system:
        return None
    try:
        fields = _fields_of(process.number)
        if int(fields[START]) != process.start:
            return None
        return ProcessState(fields[STATE], (*map(int, fields[TIMES]), _ran_ns(process.number)))
    except (OSError, ValueError, IndexError):
        return None


def judge(before: ProcessState | None, after: ProcessState | None) -> str:
    """Return a word for a process that did not answer, from its states before and after.

    Returns
    -------
    "busy", "paused" or "ended"; "silent" if nobody saw the process
    """
    if before is None or after is None:
        return "silent"
    if after.state in ENDED:
        return "ended"
    return "busy" if after.state not in STOPPED and after.ran != before.ran else "paused"


def process_from_json(told: Sequence[str | int] | None) -> Process | None:
    """Return the process that another rank described by ``process_to_json``."""
    return None if told is None else Process(str(told[0]), int(told[1]), int(told[2]))


def process_to_json(process: Process | None) -> list[str | int] | None:
    """Return a process as a JSON-able list."""
    return None if process is None else list(astuple(process))


def _fields_of(number: int) -> list[str]:
    return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()


def _ran_ns(number: int) -> int:
    ran_ns = 0
    for task in Path(f"/proc/{number}/task").iterdir():
        try:
            ran_ns += int((task / "schedstat").read_text().split()[0])
        except FileNotFoundError:  # the thread has ended since its folder was listed
            continue
    return ran_ns
