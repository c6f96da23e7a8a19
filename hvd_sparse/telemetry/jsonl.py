from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from hvd_sparse.errors import InvalidOption
from hvd_sparse.registry import WRITERS
from hvd_sparse.telemetry.contract import Place, Sink, Writer
from hvd_sparse.types import Report


@WRITERS.register("jsonl")
@dataclass(frozen=True)
class JsonLines(Writer):
    """Write each record as a line of JSON, the format that ``hvd-sparse report`` reads.

    Records are appended to an existing file, so that a restarted run loses none. If a restart
    repeats steps, ``hvd-sparse report`` uses the later records.

    Parameters
    ----------
    path : path of the file, which may begin with ``~``; a missing folder is created

    Examples
    --------
    A run without a compressor, to be compared with others:

    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sink = JsonLines(f"{folder}/dense.jsonl").open()
    ...     sink.log(step=1, loss=2.5)
    ...     sink.close()
    ...     print(pathlib.Path(folder, "dense.jsonl").read_text()[:30])
    {"event": "metrics", "step": 1
    """

    remedy: ClassVar[str] = "check the free space on the disk and the permissions of the folder"

    path: str = "telemetry.jsonl"

    def open(self, place: Place = Place()) -> Sink:  # noqa: B008 - frozen
        file: int | None = _open(Path(place.path(self.path)))

        def write(record: Report) -> None:
            if file is not None:
                # Write each line with one call, so that lines of different ranks do not mix, and a
                # killed process leaves only whole lines.
                os.write(file, (json.dumps(record) + "\n").encode())

        def close() -> None:
            nonlocal file
            if file is not None:
                os.close(file)
            file = None

        return Sink(write, close)


def _open(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        if os.fstat(file).st_size:
            with path.open("rb") as before:
                before.seek(-1, os.SEEK_END)
                if before.read() != b"\n":  # a full disk or a crash left an incomplete line
                    os.write(file, b"\n")
        return file
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InvalidOption(
            f"path of writer 'jsonl' is {str(path)!r}, which cannot be written: {why}; give the "
            "path of a file in a folder with room on its disk"
        ) from None
