"""pytest imports test files by their base name, so no two folders may have a file of one name."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent


def repeated(names: list[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)


def test_no_two_test_files_are_called_the_same():
    names = [path.name for path in TESTS.rglob("test_*.py")]
    assert len(names) > 100
    assert repeated(names) == []


def test_a_name_that_is_there_twice_is_found():
    assert repeated(["test_a.py", "test_b.py", "test_a.py"]) == ["test_a.py"]
