"""Runs as telemetry has written them down, read back from their JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path

from hvd_sparse.errors import InvalidOption
from hvd_sparse.untyped import Option, Report

STAMPS = ("event", "step", "seconds", "time")
SENT = "bytes_sent"
"""The metric by which a run without a compressor tells what it sends."""

Curve = tuple[list[float], list[float]]
"""Places and values."""


@dataclass
class Run:
    """One run.

    Attributes
    ----------
    name : for legends
    about : its "run" record; empty for a run without a compressor
    records : of steps, in order, each step once
    metrics : of the program, likewise
    """

    name: str
    about: Report = field(default_factory=dict)
    records: list[Report] = field(default_factory=list)
    metrics: list[Report] = field(default_factory=list)

    def metric_names(self) -> list[str]:
        """Return the names of the program's metrics, in the order in which they came."""
        names = {name: None for each in self.metrics for name in each if name not in STAMPS}
        names.pop(SENT, None)
        return list(names)

    def metric(self, name: str, over: str) -> Curve:
        """Return the curve of a metric.

        Parameters
        ----------
        name : of the metric
        over : "step" or "seconds"
        """
        told = [each for each in self.metrics if each.get(name) is not None]
        return [each[over] for each in told], [each[name] for each in told]

    def total(self, field_name: str, over: str = "step") -> Curve:
        """Return the curve of a field of the total, by its name and "step" or "seconds"."""
        told = [each for each in self.records if each["total"].get(field_name) is not None]
        return [each[over] for each in told], [each["total"][field_name] for each in told]

    def bytes_sent(self, over: str) -> Curve:
        """Return the curve of all bytes sent so far, over "step" or "seconds"."""
        places, values, so_far, last = [], [], 0.0, 0
        told = self.records or [each for each in self.metrics if each.get(SENT) is not None]
        for each in told:
            a_step = each["total"][SENT] if "total" in each else each[SENT]
            so_far += a_step * (each["step"] - last)
            last = each["step"]
            places.append(each[over])
            values.append(so_far)
        return places, values

    @property
    def bytes_a_step(self) -> float | None:
        """Return the bytes sent in a step on average; None where nothing tells."""
        places, values = self.bytes_sent("step")
        return values[-1] / places[-1] if places and places[-1] else None

    def tensors(self) -> dict[str, Report]:
        """Return the last record's fields by tensor; empty where there is none."""
        return self.records[-1]["tensors"] if self.records else {}

    @property
    def steps(self) -> int:
        """Return the last step that anything is known of."""
        return max((each["step"] for each in (*self.records, *self.metrics)), default=0)

    @property
    def step_s(self) -> float | None:
        """Return the seconds of a step on average, from the first record to the last."""
        told = sorted((*self.records, *self.metrics), key=lambda each: each["step"])
        if len(told) < 2 or told[-1]["step"] == told[0]["step"]:
            return None
        whole: float = told[-1]["seconds"] - told[0]["seconds"]
        steps: int = told[-1]["step"] - told[0]["step"]
        return whole / steps


def read_runs(given: Sequence[str]) -> list[Run]:
    """Return the runs of files, of ``NAME=FILE``, and of all ``.jsonl`` files of folders.

    Raises
    ------
    InvalidOption : a file cannot be read, is of something else, or holds no records
    """
    found: dict[str, Path] = {}
    for each in given:
        name, _, path = each.rpartition("=") if not Path(each).exists() else ("", "", each)
        files = sorted(Path(path).glob("*.jsonl")) if Path(path).is_dir() else [Path(path)]
        if not files:
            raise InvalidOption(f"run {each!r} is a folder without .jsonl files: name another")
        for file in files:
            label = name or file.stem
            if label in found:
                raise InvalidOption(
                    f"two runs are called {label!r}: name one of them, as in other={file}"
                )
            found[label] = file
    return [read_run(name, path) for name, path in found.items()]


def read_run(name: str, path: Path) -> Run:
    """Return the run of one file.  Of a step that was told twice, as after a restart, the later
    record counts, and all that came between is dropped.

    Raises
    ------
    InvalidOption : it cannot be read, is of something else, or holds no records
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise InvalidOption(
            f"run {str(path)!r} cannot be read: {why}; give files that telemetry='jsonl' wrote"
        ) from None
    run, offset_s = Run(name), 0.0
    for number, line in enumerate(lines, 1):
        record = _record_of(line, path, number, is_last=number == len(lines))
        if record is None:
            continue
        if record["event"] == "run":
            if run.records or run.metrics:  # a restart: its clock begins anew
                kept = [e for e in (*run.records, *run.metrics) if e["step"] <= record["step"]]
                offset_s = max((each["seconds"] for each in kept), default=0.0)
            run.about = record
            _forget_after(run, record["step"])
            continue
        record["seconds"] += offset_s
        (run.metrics if record["event"] == "metrics" else run.records).append(record)
    run.records = _once(run.records)
    if not (run.records or run.metrics):
        raise InvalidOption(
            f"run {str(path)!r} holds no records: train with telemetry='jsonl', for a step at least"
        )
    return run


def _forget_after(run: Run, step: int) -> None:
    """Drop what a restart has overtaken."""
    run.records = [each for each in run.records if each["step"] <= step]
    run.metrics = [each for each in run.metrics if each["step"] <= step]


def _once(records: list[Report]) -> list[Report]:
    return [each for _, each in sorted({each["step"]: each for each in records}.items())]


def _record_of(line: str, path: Path, number: int, *, is_last: bool) -> Report | None:
    where = f"line {number} of run {str(path)!r}"
    try:
        record = json.loads(line)
        is_ours = record["event"] in ("run", "step", "metrics")
    except (ValueError, KeyError, TypeError):
        is_ours = False
    if not is_ours:
        if is_last and number > 1:  # what a killed process left
            return None
        raise InvalidOption(f"{where} is no record: give files that telemetry='jsonl' wrote")
    fault = _fault_of(record)
    if fault is not None:
        raise InvalidOption(
            f"{where} is no whole record: {fault}; give files as telemetry='jsonl' wrote them"
        )
    return dict(record)


def _fault_of(record: Report) -> str | None:
    """Return what is wrong with the fields of a record, in words; None where nothing is."""
    for name, value, kind in _fields(record):
        if value is None:
            return f"it lacks {name!r}"
        if not isinstance(value, kind):
            return f"{name!r} is {value!r}, and no {'mapping' if kind is dict else 'number'}"
    return None


def _fields(record: Report) -> Iterator[tuple[str, Option, type]]:
    """Give name and value of each field that the report looks at, and what it must be; those around
    others before these."""
    event = record["event"]
    numbers = {"": record} if event == "metrics" else {}
    yield "step", record.get("step"), Real
    yield "seconds", record.get("seconds"), Real
    if event == "run":
        yield "config", record.get("config", {}), dict
        yield "selector", record.get("config", {}).get("selector", {}), dict
        yield "shapes", record.get("shapes", {}), dict
    if event == "step":
        yield "step_s", record.get("step_s"), Real
        yield "total", record.get("total"), dict
        yield f"total.{SENT}", record["total"].get(SENT), Real
        yield "tensors", record.get("tensors"), dict
        numbers = {"total": record["total"], **record["tensors"]}
    for whose, values in numbers.items():
        yield whose, values, dict
        for name in values.keys() - {"event"}:
            if values[name] is not None:
                yield f"{whose}.{name}".removeprefix("."), values[name], Real


def in_bytes(value: float, _: int = 0) -> str:
    """Return bytes in words, as matplotlib's formatters are called."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(value) < 1000 or unit == "TB":
            break
        value /= 1000
    return f"{value:.3g} {unit}"


def in_time(value: float, _: int = 0) -> str:
    """Return seconds in words, as matplotlib's formatters are called."""
    if value >= 3600:
        return f"{value / 3600:.3g} h"
    if value >= 120:
        return f"{value / 60:.3g} min"
    return f"{value:.3g} s" if value >= 1 or value == 0 else f"{1000 * value:.3g} ms"
