"""Timing of the parts of a step. If ``HVD_SPARSE_TIMELINE`` is set, each rank writes a timeline.

A span is the start and end of one part of a step, for example of selecting. Spans are passed to
listeners: the planner, telemetry and the timeline. A timeline is in Chrome's trace format:

    [
    {"name": "clock", "ph": "M", "pid": 0, "args": {"writer": "hvd_sparse",
    "start_time_since_epoch_in_micros": ...}}, {"name": "select", "ph": "X", "ts": ..., "dur": ...,
    "pid": 0, "tid": 1, "args": {"of": "layer4.weight"}},

The process number ("pid") is the rank. Each thread ("tid", from 1) has a row. Each bucket (the
tensors of one message) has a further row for its exchanges, because exchanges overlap with the
threads' work. Times are in microseconds since the file was opened. The first event has the time of
opening, under the name that Horovod's timeline uses. If a process is killed, its file lacks the
last bracket; viewers accept this.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple, TextIO

from hvd_sparse.collectives.contract import is_elastic
from hvd_sparse.errors import InvalidOption

SETTING = "HVD_SPARSE_TIMELINE"
START = "start_time_since_epoch_in_micros"
WRITER = "hvd_sparse"
FLUSH_S = 1.0
"""Least number of seconds between two flushes of the events to the file."""

logger = logging.getLogger("hvd_sparse")


class Span(NamedTuple):
    """The start and end of one part of a step, in seconds of ``Spans.clock``.

    kind : "select", "encode", "exchange" or "decode"
    keys : names of the tensors that the part processes; for a selection over a group, the name of
        the group
    bucket : the number of an exchange's bucket, otherwise None
    sizes : numbers of entries of the tensors, if one call processes several of them
    """

    kind: str
    keys: tuple[str, ...]
    start_s: float
    end_s: float
    bucket: int | None = None
    sizes: tuple[int, ...] = ()

    def seconds(self) -> dict[str, float]:
        """Return the duration by tensor name. A call that processes several tensors is divided by
        their numbers of entries; an exchange counts in full for each of its tensors."""
        whole_s = self.end_s - self.start_s
        if not self.sizes:
            return dict.fromkeys(self.keys, whole_s)
        each_s = whole_s / sum(self.sizes)
        return {key: each_s * size for key, size in zip(self.keys, self.sizes)}


Listener = Callable[[Span], None]
"""A function that is called with each span. TensorFlow calls it from several threads."""


class Spans:
    """Passes one compressor's spans to its listeners. Without listeners the clock is not read.

    clock : function that returns seconds. With ``time.thread_time``, spans measure the CPU time of
        the calling thread; then a single listener must not compare times of different threads
    """

    def __init__(self) -> None:
        self.clock: Callable[[], float] = time.perf_counter
        self._listeners: tuple[Listener, ...] = ()
        self.is_heard = False

    def add(self, listener: Listener) -> None:
        self._listeners = (*self._listeners, listener)
        self.is_heard = True

    def remove(self, listener: Listener) -> None:
        self._listeners = tuple(each for each in self._listeners if each != listener)
        self.is_heard = bool(self._listeners)

    def now(self) -> float:
        """Return the present time in seconds, which the caller passes to ``tell`` at the end of the
        span; 0 if there is no listener."""
        return self.clock() if self._listeners else 0.0

    def tell(
        self, kind: str, keys: tuple[str, ...], start_s: float, bucket: int | None = None
    ) -> None:
        """Pass a span that ends now to the listeners. If ``start_s`` is 0, there was no listener at
        the span's start, and the span is not passed."""
        if self._listeners and start_s:
            self._pass(Span(kind, keys, start_s, self.clock(), bucket))

    def tell_together(self, kind: str, sizes: Mapping[str, int], start_s: float) -> None:
        """Pass a span of a call that ends now. The call has processed several tensors, which are
        given by their names and numbers of entries."""
        if self._listeners and start_s and sizes:
            keys, numels = tuple(sizes), tuple(sizes.values())
            self._pass(Span(kind, keys, start_s, self.clock(), sizes=numels))

    def _pass(self, span: Span) -> None:
        for listener in self._listeners:
            listener(span)


_OPEN: dict[str, TraceFile] = {}
_LOCK = threading.Lock()


class TraceFile:
    """The timeline of one process, to which several threads may write. If a write fails after the
    timeline was created, a warning is logged, the file is closed and training continues."""

    def __init__(self, path: Path, rank: int) -> None:
        self._path, self._rank = path, rank
        self._file: TextIO | None = _open(path)
        self._lock = threading.Lock()
        self._threads: dict[int | str, int] = {}
        # Write commas before events, so that a killed process's file only lacks the last bracket.
        self._separator = "[\n"
        start_us = time.time_ns() // 1000
        # Read two clocks at the same moment: the time since 1970, which aligns the files of
        # different ranks, and a clock that never jumps, for the times in this file.
        self._start_s = self._flushed_s = time.perf_counter()
        try:
            self._write("clock", "M", args={"writer": WRITER, START: start_us})
            self._write("process_name", "M", args={"name": f"hvd_sparse, rank {rank}"})
            self._file.flush()
        except OSError as error:
            self._end()
            raise _refusal(path, error.strerror) from None
        atexit.register(self.close)

    def listen(self, name: str, span: Span) -> None:
        """Write a span to the file. ``name`` is the name of the compressor that measured it."""
        kind, keys, start_s, end_s, bucket, _ = span
        whose, row = ", ".join(keys), f"hvd_sparse.{name}.{bucket}"
        with self._writing() as file:
            if file is None:
                return
            if bucket is None:
                thread = self._thread(threading.get_ident())
            else:  # in one row, even if steps have different tensors in the bucket
                thread, whose = self._thread(row), f"{row}: {whose}"
            start_us = round(1e6 * (start_s - self._start_s), 1)
            length_us = round(1e6 * (end_s - start_s), 1)
            self._write(kind, "X", tid=thread, ts=start_us, dur=length_us, args={"of": whose})
            if end_s - self._flushed_s > FLUSH_S:
                file.flush()
                self._flushed_s = end_s

    @contextlib.contextmanager
    def _writing(self) -> Iterator[TextIO | None]:
        """Yield the file, or None if it is closed. An error of writing ends the timeline."""
        with self._lock:
            try:
                yield self._file
            except OSError as error:
                logger.warning(
                    "%s: %r cannot be written any more: %s; the timeline of rank %d ends here, "
                    "training continues",
                    SETTING,
                    str(self._path),
                    error.strerror,
                    self._rank,
                )
                self._end()

    def _thread(self, owner: int | str) -> int:
        if owner not in self._threads:
            number = self._threads[owner] = len(self._threads) + 1
            name = owner if isinstance(owner, str) else "compress and decompress"
            self._write("thread_name", "M", tid=number, args={"name": name})
        return self._threads[owner]

    def _write(self, name: str, phase: str, **fields: object) -> None:
        assert self._file is not None
        event = json.dumps({"name": name, "ph": phase, "pid": self._rank, **fields})
        self._file.write(self._separator + event)
        self._separator = ",\n"

    def _end(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # closing tries again to write the rest
                file.close()

    def flush(self) -> None:
        with self._writing() as file:
            if file is not None:
                file.flush()

    def close(self) -> None:
        with self._writing() as file:
            if file is not None:
                file.write("\n]\n")
                file.flush()
                self._end()


def _open(path: Path) -> TextIO:
    """Open and empty a file. Raises InvalidOption for links, pipes and folders."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        return open(os.open(path, flags, 0o666), "w", encoding="utf-8")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise _refusal(path, "it is a symbolic link" if path.is_symlink() else why) from None


def _refusal(path: Path, why: str | None) -> InvalidOption:
    return InvalidOption(
        f"{SETTING} is {os.environ.get(SETTING)!r}, and {str(path)!r} cannot be written: {why}; "
        "give the path of a file in a folder that exists on every host, with free space on its "
        "disk"
    )


def path_of(setting: str, rank: int) -> Path:
    """Return the path of a rank's timeline. ``setting`` is the path that the user gave. In it, the
    rank replaces ``{rank}``, or else is inserted before the suffix, as in "trace.3.json". In
    elastic runs the process id follows the rank."""
    # In elastic runs, a new process may get the rank of an ended process, whose file must be kept.
    number = f"{rank}.{os.getpid()}" if is_elastic() else str(rank)
    if "{rank}" in setting:
        return Path(setting.replace("{rank}", number))
    path = Path(setting)
    if setting.endswith(os.sep) or path.name in ("", ".."):
        raise _refusal(path, "it is a folder")
    return path.with_name(f"{path.stem}.{number}{path.suffix}")


def follow(spans: Spans, name: str, rank: int) -> TraceFile | None:
    """If ``HVD_SPARSE_TIMELINE`` is set, write the spans of the compressor ``name`` to this
    process's timeline, and return the timeline; otherwise return None. Raises InvalidOption if the
    file cannot be written."""
    setting = os.environ.get(SETTING)
    if not setting:
        return None
    with _LOCK:
        if setting not in _OPEN:
            _OPEN[setting] = TraceFile(path_of(setting, rank), rank)
        spans.add(partial(_OPEN[setting].listen, name))
        return _OPEN[setting]
