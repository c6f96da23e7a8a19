"""The outlet passes records to the telemetry writers in a separate thread, so training never
waits."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from hvd_sparse.errors import InvalidOption, SparseError
from hvd_sparse.telemetry.contract import Function, Place, Writer
from hvd_sparse.untyped import Report

MOST_WAITING = 1000
"""Records that may wait for their writers; further ones are dropped."""
LAST_S = 10.0
"""Seconds for which a program waits at its end for pending records."""

logger = logging.getLogger("hvd_sparse")


class Target(NamedTuple):
    """An open writer: its name, its functions, and the remedy when it fails."""

    name: str
    write: Callable[[Report], object]
    close: Callable[[], object]
    remedy: str


class Outlet:
    """The open writers of one rank.

    A writer that fails is closed, with one warning that names the writer and the remedy.
    """

    def __init__(self, writers: Sequence[Writer | Function], place: Place) -> None:
        self._targets = [
            _opened(writer, number, place)
            for number, writer in enumerate(writers)
            if place.rank == 0 or getattr(writer, "all_ranks", False)
        ]
        self._jobs: queue.Queue[Report | None] = queue.Queue(MOST_WAITING)
        self._is_over = self._has_dropped = False
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def _names(self) -> str:
        return ", ".join(target.name for target in self._targets)

    @property
    def is_open(self) -> bool:
        """Return whether any writer is open."""
        return bool(self._targets) and not self._is_over

    def put(self, record: Report) -> None:
        """Queue a record for all writers, without waiting."""
        with self._lock:
            if not self.is_open:
                return
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="hvd_sparse telemetry", daemon=True
                )
                self._thread.start()
        try:
            self._jobs.put_nowait(record)
        except queue.Full:
            if not self._has_dropped:
                self._has_dropped = True
                logger.warning(
                    "telemetry: writers %s are behind by %d records, so further ones are "
                    "dropped: check the disk or server they write to, or raise telemetry_every",
                    self._names(),
                    MOST_WAITING,
                )

    def _run(self) -> None:
        while (record := self._jobs.get()) is not None:
            for target in list(self._targets):
                try:
                    target.write(record)
                # Any exception, also of a user's writer, because training must go on.
                except Exception as error:
                    self._drop(target, error)
        for target in list(self._targets):
            try:
                target.close()
            except Exception as error:
                self._drop(target, error)

    def _drop(self, target: Target, error: Exception) -> None:
        self._targets.remove(target)
        logger.warning(
            "telemetry: writer %s failed and is disabled; training continues: %s: %s; %s",
            target.name,
            type(error).__name__,
            error,
            target.remedy,
        )
        with contextlib.suppress(Exception):  # the writer's error was logged already
            target.close()

    def close(self) -> None:
        """Write pending records, close the writers, and accept no more; with a time limit."""
        with self._lock:
            if self._is_over:
                return
            self._is_over, thread = True, self._thread
        if thread is threading.current_thread():  # garbage is collected in any thread
            return
        if thread is None:
            for target in self._targets:
                with contextlib.suppress(Exception):  # no record was written
                    target.close()
            return
        with contextlib.suppress(queue.Full):
            self._jobs.put(None, timeout=LAST_S)
        thread.join(LAST_S)
        if thread.is_alive():
            logger.warning(
                "telemetry: writers %s did not end within %g s, so the last records may be "
                "missing: %s",
                self._names(),
                LAST_S,
                "; ".join(target.remedy for target in self._targets),
            )


def _opened(writer: Writer | Function, number: int, place: Place) -> Target:
    if not isinstance(writer, Writer):
        name = f"{getattr(writer, '__qualname__', type(writer).__name__)} ({number})"
        return Target(name, writer, lambda: None, "let it return, and catch what it raises")
    try:
        sink = writer.open(place)
    except SparseError:
        raise
    except Exception as error:  # an error of the writer's own package
        raise InvalidOption(
            f"telemetry writer {writer.id!r} cannot begin: {type(error).__name__}: {error}; "
            f"{writer.remedy}, or leave it out"
        ) from error
    return Target(f"{writer.id} ({number})", sink.write, sink.close, writer.remedy)
