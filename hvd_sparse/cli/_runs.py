"""Runs, read from the JSON lines that telemetry has written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hvd_sparse.errors import InvalidOption
from hvd_sparse.untyped import Report

STAMPS = ("event", "step", "seconds", "time")
NEEDED = ("step", "seconds", "step_s")
SENT = "bytes_sent"
"""The metric by which a run without a compressor tells what it sends."""

Curve = tuple[list[float], list[float]]
"""Places and values."""


@dataclass
class Run:
    """One run: its "run" record, empty without a compressor, and the records of steps and of the
    program's metrics, in order, each step once."""

    name: str
    about: Report = field(default_factory=dict)
    records: list[Report] = field(default_factory=list)
    metrics: list[Report] = field(default_factory=list)

    def metric_names(self) -> list[str]:
        names = {name: None for each in self.metrics for name in each if name not in STAMPS}
        names.pop(SENT, None)
        return list(names)

    def metric(self, name: str, over: str) -> Curve:
        """Return the curve of a metric, over "step" or "seconds"."""
        return _curve([(each[over], each.get(name)) for each in self.metrics])

    def total(self, name: str, over: str) -> Curve:
        """Return the curve of a field of the total, over "step" or "seconds"."""
        return _curve([(each[over], each["total"].get(name)) for each in self.records])

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
        """Return the average bytes sent in a step, or None without a record of them."""
        places, values = self.bytes_sent("step")
        return values[-1] / places[-1] if places and places[-1] else None

    def tensors(self) -> dict[str, Report]:
        """Return the last record's fields by tensor; empty where there is none."""
        return self.records[-1]["tensors"] if self.records else {}

    @property
    def steps(self) -> int:
        """Return the step of the last record or metric."""
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


def _curve(points: Sequence[tuple[float, float | None]]) -> Curve:
    known = [(place, value) for place, value in points if value is not None]
    return [place for place, _ in known], [value for _, value in known]


def read_runs(given: Sequence[str]) -> list[Run]:
    """Return the runs of files, of ``NAME=FILE``, and of all ``.jsonl`` files of folders.

    Raises
    ------
    InvalidOption : a file cannot be read, has another format, or holds no records
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
    """Return the run of one file.  If a restart repeated steps, the later record counts, and the
    records in between are dropped.

    Raises
    ------
    InvalidOption : the file cannot be read, has another format, or holds no records
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
        try:
            record = _record_of(line)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if number == len(lines) > 1:  # what a killed process left
                break
            raise InvalidOption(
                f"line {number} of run {str(path)!r} is no record ({type(error).__name__}: "
                f"{error}): give files as telemetry='jsonl' wrote them"
            ) from None
        if record["event"] == "run":  # the first, or a restart: its clock begins anew
            run.about, last = record, record["step"]
            run.records = [each for each in run.records if each["step"] <= last]
            run.metrics = [each for each in run.metrics if each["step"] <= last]
            offset_s = max((e["seconds"] for e in (*run.records, *run.metrics)), default=0.0)
            continue
        record["seconds"] += offset_s
        (run.metrics if record["event"] == "metrics" else run.records).append(record)
    run.records = list({each["step"]: each for each in run.records}.values())
    if not (run.records or run.metrics):
        raise InvalidOption(
            f"run {str(path)!r} holds no records: train with telemetry='jsonl', for a step at least"
        )
    return run


def _record_of(line: str) -> Report:
    """Return the record of a line; raise an error of Python's where it is none."""
    record: Report = json.loads(line)
    measured = {"seconds": record["seconds"], "step": record["step"]}
    if record["event"] == "run":
        record.get("config", {}).get("selector", {}).get("id")
        list(record.get("shapes", {}).keys())
    elif record["event"] == "metrics":
        measured = {name: record[name] for name in record if name != "event"}
    elif record["event"] == "step":
        measured |= {"step_s": record["step_s"], SENT: record["total"][SENT]}
        for fields in (record["total"], *record["tensors"].values()):
            measured |= {name: value for name, value in fields.items() if value is not None}
    else:
        raise ValueError(f"its event is {record['event']!r}")
    for name, value in measured.items():
        if not isinstance(value, (int, float)) and (value is not None or name in NEEDED):
            raise ValueError(f"{name!r} is {value!r}, and no number")
    return record


def in_bytes(value: float, _: int = 0) -> str:
    """Return bytes with their unit, for matplotlib's ``FuncFormatter``."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(value) < 1000 or unit == "TB":
            break
        value /= 1000
    return f"{value:.3g} {unit}"


def in_time(value: float, _: int = 0) -> str:
    """Return seconds with their unit, for matplotlib's ``FuncFormatter``."""
    if value >= 3600:
        return f"{value / 3600:.3g} h"
    if value >= 120:
        return f"{value / 60:.3g} min"
    return f"{value:.3g} s" if value >= 1 or value == 0 else f"{1000 * value:.3g} ms"
