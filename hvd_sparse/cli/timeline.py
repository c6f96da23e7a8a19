"""The command ``hvd-sparse timeline``: merges this package's timelines and Horovod's into one file.

chrome://tracing and ui.perfetto.dev show it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from hvd_sparse.cli._commands import Commands
from hvd_sparse.errors import InvalidOption
from hvd_sparse.tracing.merge import merge_traces, read_trace


def add_parser(commands: Commands) -> None:
    """Add the sub-command to the parser."""
    parser = commands.add_parser(
        "timeline", help="put HVD_SPARSE_TIMELINE and HOROVOD_TIMELINE files on one clock"
    )
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="of any ranks, ours and Horovod's, in any order"
    )
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FILE", help="of all events"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the sub-command; return its exit code."""
    events = merge_traces({name: read_trace(name) for name in options.files})
    try:
        options.output.write_text(
            "[\n" + ",\n".join(map(json.dumps, events)) + "\n]\n", encoding="utf-8"
        )
    except OSError as error:
        raise InvalidOption(
            f"output {str(options.output)!r} cannot be written: {error.strerror}"
        ) from None
    print(
        f"{len(events)} events of {len(set(options.files))} files; open {options.output} in "
        "ui.perfetto.dev"
    )
    return 0
