"""The kernel's word on a process, where ``/proc`` has one: no thread of that process need run to
give it.

A process whose code holds Python's lock answers nobody, as one that is suspended does.  The kernel
tells them apart: it names what is stopped, and counts the processor time of all threads, of which
the one that waits for the lock takes some every few milliseconds.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

STOPPED = ("T", "t")
ENDED = ("Z", "X", "x")
STATE, TIMES, START = 0, slice(11, 13), 19
"""Places in ``/proc/PID/stat`` after the command, which may hold blanks and brackets."""


@dataclass(frozen=True)
class Process:
    """A process, and who can see it.

    Attributes
    ----------
    system : the running kernel and the namespace of numbers; processes of the same one see each
        other
    number : of the process
    start : in the kernel's ticks, as numbers are used again
    """

    system: str
    number: int
    start: int


@dataclass(frozen=True)
class Sight:
    """The kernel's word on a process, now.

    Attributes
    ----------
    state : its letter for the main thread
    ran : processor time that its threads have had: in ticks, and to the nanosecond where the kernel
        counts so
    """

    state: str
    ran: tuple[int, ...]


def this_process() -> Process | None:
    """Return what others look for; None where the system tells nothing."""
    try:
        system = (
            Path("/proc/sys/kernel/random/boot_id").read_text().strip()
            + " "
            + os.readlink("/proc/self/ns/pid")
        )
        return Process(system, os.getpid(), int(_fields_of(os.getpid())[START]))
    except (OSError, ValueError, IndexError):
        return None


def look_at(process: Process | None) -> Sight | None:
    """Return what can be seen of a process; None if it is another system's, or is not there."""
    here = this_process()
    if process is None or here is None or process.system != here.system:
        return None
    try:
        fields = _fields_of(process.number)
        if int(fields[START]) != process.start:
            return None
        return Sight(fields[STATE], (*map(int, fields[TIMES]), _ran_ns(process.number)))
    except (OSError, ValueError, IndexError):
        return None


def judge(before: Sight | None, after: Sight | None) -> str:
    """Return what became of a process that did not answer: "busy", "paused", "ended", or "silent"
    if nobody saw it."""
    if before is None or after is None:
        return "silent"
    if after.state in ENDED:
        return "ended"
    return "busy" if after.state not in STOPPED and after.ran != before.ran else "paused"


def process_of(told: Sequence[Any] | None) -> Process | None:
    """Return the process that another rank told of, as ``tell`` does."""
    return None if told is None else Process(str(told[0]), int(told[1]), int(told[2]))


def tell(process: Process | None) -> list[Any] | None:
    """Return a process as JSON holds it."""
    return None if process is None else list(astuple(process))


def _fields_of(number: int) -> list[str]:
    return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()


def _ran_ns(number: int) -> int:
    ran_ns = 0
    for task in Path(f"/proc/{number}/task").iterdir():
        try:
            ran_ns += int((task / "schedstat").read_text().split()[0])
        except FileNotFoundError:  # a thread that has ended
            continue
    return ran_ns
