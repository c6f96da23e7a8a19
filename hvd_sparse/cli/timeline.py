"""The command ``hvd-sparse timeline``: merges timelines of Horovod and of this package."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path

from hvd_sparse.cli.output import write_output
from hvd_sparse.errors import InvalidOption
from hvd_sparse.tracing import START, WRITER
from hvd_sparse.types import Report


def set_up(parser: argparse.ArgumentParser) -> None:
    files = "timelines of any ranks, of hvd_sparse and of Horovod, in any order"
    parser.add_argument("files", nargs="+", metavar="FILE", help=files)
    merged = "the merged timeline to write"
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help=merged)


def run(options: argparse.Namespace) -> int:
    events = merge_traces({name: read_trace(name) for name in options.files})
    text = "[\n" + ",\n".join(map(json.dumps, events)) + "\n]\n"
    output = write_output(options.output, text, map(Path, options.files))
    print(
        f"{len(events)} events of {len(set(options.files))} files; open {output} in ui.perfetto.dev"
    )
    return 0


def read_trace(path: str | os.PathLike[str]) -> list[Report]:
    """Return the events of a timeline file. Broken events are left out, and their number is
    printed. Only broken events at the file's end are left out without a note. Raises InvalidOption
    if the file cannot be read or is not a timeline."""
    name = os.fspath(path)
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InvalidOption(f"timeline {name!r} cannot be read: {error.strerror}") from None
    events: list[Report] = []
    broken = noted = 0
    for line in text.split("\n"):
        for event in _events_of(line.strip().lstrip("[").rstrip(",]")):
            if isinstance(event, dict):
                events.append(event)
                noted = broken
            else:
                broken += 1
    for number, event in enumerate(events, 1):
        if fault := _fault_of(event):
            raise InvalidOption(
                f"event {number} of timeline {name!r} is malformed: {fault}; give files that "
                f"{WRITER} or Horovod wrote"
            )
    if noted:
        print(f"broken events of timeline {name!r}, left out: {noted}", file=sys.stderr)
    if not events:
        raise InvalidOption(
            f"{name!r} is not a timeline: give files that {WRITER} or Horovod wrote"
        )
    return events


def _events_of(text: str) -> list[object]:
    """Return the events in a line of a timeline, because Horovod writes several in some lines. A
    broken event is returned as None."""
    try:
        return list(json.loads(f"[{text}]"))
    except (json.JSONDecodeError, RecursionError):
        pieces = re.split(r"(?<=}),\s*(?={)", text)
    if len(pieces) == 1:
        return [None]
    return [event for piece in pieces for event in _events_of(piece)]


def _fault_of(event: Report) -> str | None:
    args = event.get("args", {})
    if not isinstance(args, dict):
        return f"its args are {args!r}, not a mapping"
    if not isinstance(args.get(START, 0), int):
        return f"its {START} is {args[START]!r}, not a whole number"
    if not isinstance(event.get("ts", 0), Real):
        return f"its ts is {event['ts']!r}, not a number"
    if not isinstance(event.get("pid", 0), (int, str)):
        return f"its pid is {event['pid']!r}, not a number"
    return None


def merge_traces(traces: Mapping[str, Sequence[Report]]) -> list[Report]:
    """Return the events of all timelines, beginning with those of this package. Times are
    microseconds since the start of the earliest timeline; differences between hosts' clocks are not
    corrected. Each process gets a new, unique number."""
    starts = {name: _start_of(name, events) for name, events in traces.items()}
    earliest = min(starts.values())
    numbers: dict[tuple[str, int | None], int] = {}
    merged: list[Report] = []

    def is_other(name: str) -> bool:
        return all(event.get("args", {}).get("writer") != WRITER for event in traces[name])

    for name in sorted(traces, key=is_other):
        for event in traces[name]:
            args = event.get("args", {})
            if START in args or event.get("name") == "process_sort_index":
                continue
            new = len(numbers)
            number = numbers.setdefault((name, event.get("pid")), new)
            if number == new:
                order = {"name": "process_sort_index", "ph": "M", "pid": number}
                merged.append({**order, "args": {"sort_index": number}})
            moved = {**event, "pid": number}
            if "ts" in event:
                moved["ts"] = event["ts"] + starts[name] - earliest
            merged.append(moved)
    return merged


def _start_of(name: str, events: Sequence[Report]) -> int:
    for event in events:
        if START in event.get("args", {}):
            return int(event["args"][START])
    raise InvalidOption(
        f"timeline {name!r} has no start time, so it cannot be merged with others: give files of "
        "HVD_SPARSE_TIMELINE, or of HOROVOD_TIMELINE from Horovod 0.28"
    )
