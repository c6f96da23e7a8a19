"""``HVD_SPARSE_TIMELINE``: what this package does, span by span, as Chrome's trace format, one file
a rank.

    [
    {"name": "clock", "ph": "M", "pid": 0, "args": {"writer": "hvd_sparse",
    "start_time_since_epoch_in_micros": ...}}, {"name": "select", "ph": "X", "ts": ..., "dur": ...,
    "pid": 0, "tid": 1, "args": {"of": "layer4.weight"}},

The process is the rank.  Thread 1 and those after it are the threads that select, encode and
decode; a bucket's exchanges, which overlap with them, have a thread of their own.  Times are
microseconds since the start, as in Horovod's own timeline, whose first event tells its start by the
same name.  A file whose process was killed lacks its end, which viewers forgive.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
from pathlib import Path
from typing import IO, Any, Callable

from hvd_sparse.collectives.topology import is_elastic
from hvd_sparse.errors import InvalidOption
from hvd_sparse.tracing.spans import Spans

SETTING = "HVD_SPARSE_TIMELINE"
START = "start_time_since_epoch_in_micros"
WRITER = "hvd_sparse"
FLUSH_S = 1.0

_OPEN: dict[str, TraceFile] = {}
_LOCK = threading.Lock()


class TraceFile:
    """One process's file.  Safe to call from many threads."""

    def __init__(self, path: Path, rank: int) -> None:
        try:
            self._stream: IO[str] = path.open("w", encoding="utf-8")
        except OSError as error:
            raise InvalidOption(
                f"{SETTING} is {os.environ.get(SETTING)!r}, and {str(path)!r} cannot be written: "
                f"{error.strerror}; give a "
                "path in a folder that is there on every host"
            ) from None
        self._rank = rank
        self._lock = threading.Lock()
        self._threads: dict[Any, int] = {}
        self._separator = "[\n"
        start_us = time.time_ns() // 1000
        self._start_s = self._flushed_s = time.perf_counter()
        self._write("clock", "M", args={"writer": WRITER, START: start_us})
        self._write("process_name", "M", args={"name": f"hvd_sparse, rank {rank}"})
        atexit.register(self.close)

    def listen(self, what: str, whose: str, start_s: float, end_s: float) -> None:
        """A ``tracing.spans.Listener``."""
        with self._lock:
            if self._stream.closed:
                return
            thread = self._thread(
                whose.partition(":")[0] if what == "exchange" else threading.get_ident()
            )
            times = {
                "ts": round(1e6 * (start_s - self._start_s), 1),
                "dur": round(1e6 * (end_s - start_s), 1),
            }
            self._write(what, "X", tid=thread, **times, args={"of": whose})
            if end_s - self._flushed_s > FLUSH_S:
                self._stream.flush()
                self._flushed_s = end_s

    def _thread(self, owner: Any) -> int:
        """The number of a thread, or of what stands for one; named when it is first seen."""
        if owner not in self._threads:
            number = self._threads[owner] = len(self._threads) + 1
            name = owner if isinstance(owner, str) else "compress and decompress"
            self._write("thread_name", "M", tid=number, args={"name": name})
        return self._threads[owner]

    def _write(self, name: str, phase: str, **fields: Any) -> None:
        self._stream.write(
            self._separator + json.dumps({"name": name, "ph": phase, "pid": self._rank, **fields})
        )
        self._separator = ",\n"

    def flush(self) -> None:
        """What was written so far is in the file."""
        with self._lock:
            if not self._stream.closed:
                self._stream.flush()

    def close(self) -> None:
        """End the file."""
        with self._lock:
            if not self._stream.closed:
                self._stream.write("\n]\n")
                self._stream.close()


def path_of(setting: str, rank: int) -> Path:
    """A rank's file: ``{rank}`` in the setting stands for its number, else that comes before the
    suffix.

    In elastic runs ranks change: the number of the process is there too.
    """
    number = f"{rank}.{os.getpid()}" if is_elastic() else str(rank)
    if "{rank}" in setting:
        return Path(setting.replace("{rank}", number))
    path = Path(setting)
    return path.with_name(f"{path.stem}.{number}{path.suffix}")


def follow(spans: Spans, rank: Callable[[], int]) -> TraceFile | None:
    """Write down a compressor's spans, where the setting asks for it; all of a process go into one
    file, which is returned.

    InvalidOption if it cannot be written.
    """
    setting = os.environ.get(SETTING)
    if not setting:
        return None
    with _LOCK:
        if setting not in _OPEN:
            number = rank()
            _OPEN[setting] = TraceFile(path_of(setting, number), number)
        spans.add(_OPEN[setting].listen)
        return _OPEN[setting]
