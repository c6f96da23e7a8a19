"""Telemetry: measures the first step and one in every ``telemetry_every`` steps. Records of these
steps go to the writers, for example of files, which run in a separate thread. Other steps are only
counted."""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from hvd_sparse.errors import InvalidOption, SparseError
from hvd_sparse.step.records import StepRun, TensorStep
from hvd_sparse.step.stats import BYTES, MEASURED, Counts, figures, measured, summed
from hvd_sparse.step.step import Step
from hvd_sparse.telemetry.contract import Function, Place, Sink, Writer, numbers_of, stamped
from hvd_sparse.tracing import Span
from hvd_sparse.types import Report

logger = logging.getLogger("hvd_sparse")

MOST_WAITING = 1000
"""Largest number of records that wait for the writers; further records are dropped."""
LAST_S = 10.0
"""Seconds to wait at a program's end: first for a place in the queue, then for the writers."""

SPANS = ("select", "encode", "exchange", "decode")


class Recorder:
    """Makes the records of one compressor on one rank, for the first step and for every step whose
    number is a multiple of ``every``. ``find_lagging`` returns the ranks that have submitted fewer
    tensors than this rank."""

    def __init__(
        self, step: Step, every: int, outlet: Outlet, find_lagging: Callable[[], list[int]]
    ) -> None:
        # Not the step, which refers to the compressor: the compressor's finalizer has this object,
        # and would keep the compressor alive.
        self._transactions, self._pipeline = step.transactions, step.pipeline
        self._every, self._outlet = every, outlet
        self._find_lagging = find_lagging
        self._count = 0
        self._run: StepRun | None = None
        self._run_began_s = 0.0
        self._began_s = time.monotonic()
        self._last_count = 0
        self._spans: list[Span] = []
        self._lagging: list[int] | None = None
        self._has_asked = False
        self._counted: dict[str, Counts] = {}
        self._bytes: dict[str, int] = {}
        self._transactions.on_begin = self.begin

    def begin(self, run: StepRun) -> None:
        """Finish the record of the step that was measured last, if it is still open. If the new
        step, ``run``, gets a record, begin to measure this step. The caller holds the lock of the
        tensors' states (``step.transactions``)."""
        try:
            if self._run is not None:
                self._finish(self._run)
        except Exception as error:  # telemetry must not end the training
            self._transactions.on_begin = None
            logger.warning(
                "telemetry: a record could not be made, so recording stops; training continues: "
                "%s: %s; please report this with the exchange and the method",
                type(error).__name__,
                error,
            )
            return
        self._count += 1
        if self._count == 1 or self._count % self._every == 0:
            self._run, self._run_began_s = run, time.perf_counter()
            self._spans, self._lagging, self._has_asked = [], None, False
            self._pipeline.observes = True
            self._pipeline.spans.add(self._spans.append)

    def submitted(self, run: StepRun) -> None:
        """Ask in a new thread which ranks are behind, if the step ``run`` is measured. Called when
        this rank has submitted all tensors of the step."""
        if run is not self._run or self._has_asked:
            return
        self._has_asked = True

        def ask() -> None:
            lagging = self._find_lagging()
            if self._run is run:
                self._lagging = lagging

        threading.Thread(target=ask, name="hvd_sparse lag", daemon=True).start()

    def put(self, kind: str, content: Report, step: int | None = None) -> None:
        """Pass a record to the writers. ``kind`` is its field "event", for example "metrics".
        ``step`` is by default the number of completed steps."""
        number = self._transactions.most_steps() if step is None else step
        self._outlet.put(stamped(kind, number, self._began_s, content))

    def close(self) -> None:
        with self._transactions.lock:
            self._transactions.on_begin = None
            run = self._run
            # Uncompressed tensors may not be marked as completed, so check only those in buckets.
            if run is not None and all(
                run.completed >= bucket.entered for bucket in run.buckets.values()
            ):
                self._finish(run)
            else:
                self._end_measuring()
        self._outlet.close()

    def _end_measuring(self) -> None:
        self._run = None
        self._pipeline.spans.remove(self._spans.append)
        self._pipeline.observes = self._pipeline.configuration.telemetry is True

    def _finish(self, run: StepRun) -> None:
        self._end_measuring()
        now_s = time.perf_counter()
        steps = self._count - self._last_count
        record = {
            "steps": steps,
            "step_s": now_s - self._run_began_s,
            "failed": None if run.failure is None else type(run.failure).__name__,
            "is_finite": run.is_finite,
            "lagging_ranks": self._lagging,
            **self._values(run, steps),
        }
        self._last_count = self._count
        self.put("step", record)

    def _values(self, run: StepRun, steps: int) -> Report:
        stats, exchange = self._transactions.stats, self._pipeline.exchange
        seconds = _seconds_of(self._spans)
        tickets: dict[str, TensorStep] = {}
        for bucket in run.buckets.values():
            tickets |= {ticket.key: ticket for ticket in bucket.sending.values()}
        bytes_before, self._bytes = self._bytes, stats.all_bytes()
        has_frames = not (exchange.settles_later or exchange.sums_first)
        counts, tensors = [], {}
        for key, counter in list(stats.tensors.items()):
            before, now = self._counted.get(key, Counts()), Counts(counter)
            self._counted[key] = now
            counted = Counts(
                {name: now[name] - before[name] for name in now if name not in MEASURED}
            )
            ticket = tickets.get(key)
            sent = None if ticket is None else ticket.outgoing
            if sent is not None:
                # Not a difference of counters, because an earlier measured step may be rolled back.
                counted |= measured(sent)
            counts.append(counted)
            values = _figures(counted, [] if ticket is None or sent is None else [ticket])
            if has_frames:
                values["bytes_sent"] = counted[BYTES] / steps
                if ticket is not None and sent is not None:
                    values["bytes_received"] = _received(ticket)
            if sent is not None and sent.found is not None and sent.found.threshold is not None:
                values |= numbers_of({"threshold": sent.found.threshold})
            tensors[key] = {**values, **{f"{kind}_s": seconds[kind].get(key) for kind in SPANS}}
        total = _figures(summed(counts), tickets.values())
        for way in ("sent", "received"):
            total[f"bytes_{way}"] = (self._bytes[way] - bytes_before.get(way, 0)) / steps
        for kind in SPANS:
            total[f"{kind}_s"] = sum(seconds[kind].values()) if seconds[kind] else None
        total["exchange_s"] = union(self._spans)
        return {"total": total, "tensors": tensors}


def _figures(counts: Counts, tickets: Iterable[TensorStep]) -> Report:
    asked = {ticket.parts.density for ticket in tickets}
    norm = math.sqrt(counts["kept"]) if "kept" in counts else math.nan
    return {
        **figures(counts),
        # The total has a density only if all tensors have the same one.
        "density_asked": asked.pop() if len(asked) == 1 else None,
        "threshold": None,
        **numbers_of({"residual_norm": norm}),
        "bytes_sent": None,
        "bytes_received": None,
    }


def _received(ticket: TensorStep) -> int | None:
    if ticket.position not in ticket.bucket.arrivals:
        return None
    parts = [part for _, part in ticket.bucket.arrivals[ticket.position].parts]
    frames = [part for part in parts if isinstance(part, np.ndarray) and part.dtype == np.uint8]
    return sum(frame.nbytes for frame in frames) if len(frames) == len(parts) else None


def _seconds_of(spans: Iterable[Span]) -> dict[str, dict[str, float]]:
    """Return the durations of the parts of a step (spans), in seconds: by kind, such as "select",
    and then by tensor name."""
    found: dict[str, dict[str, float]] = {kind: defaultdict(float) for kind in SPANS}
    for span in list(spans):
        for key, seconds in span.seconds().items():
            found[span.kind][key] += seconds
    return found


def union(spans: Iterable[Span]) -> float | None:
    """Return the seconds in which at least one exchange was running; None without exchanges."""
    under_way = sorted((s.start_s, s.end_s) for s in spans if s.kind == "exchange")
    if not under_way:
        return None
    total, reached = 0.0, under_way[0][0]
    for start_s, end_s in under_way:
        total += max(0.0, end_s - max(start_s, reached))
        reached = max(reached, end_s)
    return total


class Outlet:
    """The open writers of one rank: all writers on rank 0, and on other ranks those that have the
    option ``all_ranks``. A writer that raises an exception is closed, with a warning."""

    def __init__(self, writers: Sequence[Writer | Function], place: Place) -> None:
        self._targets = [
            _opened(writer, number, place)
            for number, writer in enumerate(writers)
            if place.rank == 0 or getattr(writer, "all_ranks", False)
        ]
        self._jobs: queue.Queue[Report | None] = queue.Queue(MOST_WAITING)
        self._is_over = self._has_dropped = False
        self._thread = threading.Thread(target=self._run, name="hvd_sparse telemetry", daemon=True)
        if self._targets:
            self._thread.start()

    def _names(self) -> str:
        return ", ".join(target.name for target in self._targets)

    @property
    def is_open(self) -> bool:
        return bool(self._targets) and not self._is_over

    def put(self, record: Report) -> None:
        """Queue a record for all writers. If the queue is full, drop the record."""
        if not self.is_open:
            return
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

    def _drop(self, target: Sink, error: Exception) -> None:
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
        """Wait, up to a time limit, until all records are written and the writers are closed."""
        was_over, self._is_over, thread = self._is_over, True, self._thread
        # The garbage collector may call this method in any thread.
        if was_over or not thread.is_alive() or thread is threading.current_thread():
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


def _opened(writer: Writer | Function, number: int, place: Place) -> Sink:
    if not isinstance(writer, Writer):
        name = f"{getattr(writer, '__qualname__', type(writer).__name__)} ({number})"
        return Sink(writer, lambda: None, name, "make the function return, and catch its errors")
    try:
        sink = writer.open(place)
    except SparseError:
        raise
    except Exception as error:  # an error of the writer's own package
        raise InvalidOption(
            f"telemetry writer {writer.id!r} cannot begin: {type(error).__name__}: {error}; "
            f"{writer.remedy}, or leave it out"
        ) from error
    sink.name, sink.remedy = f"{writer.id} ({number})", writer.remedy
    return sink
