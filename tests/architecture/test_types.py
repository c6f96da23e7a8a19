"""Types are named: ``Any`` is an exception that somebody counted."""

from __future__ import annotations

import re

from architecture.imports import SOURCES

MOST_LINES = 60
"""Lines of the package that may mention ``Any``. It is only ever lowered."""


def lines_with_any(text: str) -> int:
    lines = [line for line in text.splitlines() if re.search(r"\bAny\b", line)]
    return sum(not line.lstrip().startswith(("from typing import", "import")) for line in lines)


def test_few_lines_of_the_package_mention_any():
    counts = {
        module: lines_with_any(path.read_text(encoding="utf-8")) for module, path in SOURCES.items()
    }
    most = sorted(counts.items(), key=lambda each: -each[1])[:10]
    assert sum(counts.values()) <= MOST_LINES, f"most are in {most}"


def test_a_line_that_mentions_any_is_counted():
    assert lines_with_any("from typing import Any\nx: Any = 1\ny: dict[str, Any]\nAnything") == 2
