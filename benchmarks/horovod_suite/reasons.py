"""Why a program of Horovod's fails with a compressor, where it is a documented limit."""

from __future__ import annotations

import re

REASONS = {
    "UnsupportedReduction|Adasum": "Adasum is refused: it needs the gradients themselves",
    "graph of TensorFlow 1": "graphs and sessions of TensorFlow 1 are refused",
}
"""What is said, and the limit: each is in docs/guide/limits.md."""


def reason_for(words: str) -> str | None:
    """Return the documented limit that an error's words name; None for anything else."""
    return next((why for pattern, why in REASONS.items() if re.search(pattern, words)), None)


def last_line(words: str) -> str:
    """Return the line of an error that says most: the last that names an exception."""
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    named = [
        line for line in lines if re.search(r"\b[A-Z]\w*(Error|Exception|Warning)\b|^E ", line)
    ]
    return ([*lines, "nothing was said"][:1] if not lines else (named or lines)[-1:])[0]
