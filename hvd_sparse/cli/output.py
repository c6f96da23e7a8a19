from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hvd_sparse.errors import InvalidOption


def write_output(output: Path, text: str, inputs: Iterable[Path]) -> str:
    """Write a command's result to the file of ``--output``, and return the path as a text that can
    be printed. Raises InvalidOption if the file cannot be written, or would replace an input or an
    existing ``.jsonl`` file, which may have records of a run."""
    try:
        is_input = output.exists() and any(map(output.samefile, inputs))
        if is_input or (output.suffix == ".jsonl" and output.exists()):
            raise InvalidOption(
                f"output {str(output)!r} would replace an input or records of a run: name another "
                "file with --output"
            )
        output.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise InvalidOption(
            f"output {str(output)!r} cannot be written: {error.strerror}; name another file with "
            "--output"
        ) from None
    return str(output).encode(errors="replace").decode()
