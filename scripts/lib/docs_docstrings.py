"""Docstrings of the house as mkdocstrings reads numpydoc: a description stands under its name."""

from __future__ import annotations

import re

try:
    import griffe
except ImportError:  # where only ``spread`` is wanted, by a test
    griffe = None

SECTIONS = ("Parameters", "Attributes", "Raises")
ENTRY = re.compile(r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*) : ?(.*)$")


def spread(text: str) -> str:
    """Return a docstring with every description under its name, where numpydoc has it.

    ``name : words`` would make a type of the words. Two colons, which begin code there, are one
    here.
    """
    lines: list[str] = []
    section, others = "", ""
    for line, after in zip(text.split("\n"), [*text.split("\n")[1:], ""]):
        if after and set(after) == {"-"}:
            section = line
        entry = ENTRY.match(line) if section in SECTIONS else None
        if others and (entry or not line.startswith(" ")):
            lines += _repeated(others, lines)
            others = ""
        if entry:
            first, _, others = entry[1].partition(", ")
            lines += [first, f"    {entry[2]}"]
        else:
            lines.append(line[:-1] if line.endswith("::") else line)
    return "\n".join([*lines, *_repeated(others, lines)])


def _repeated(names: str, lines: list[str]) -> list[str]:
    """Return the last entry's description once more, under each further name that it has."""
    if not names:
        return []
    start = max(i for i, line in enumerate(lines) if not line.startswith(" "))
    return [line for name in names.split(", ") for line in (name, *lines[start + 1 :])]


if griffe is not None:

    class Spread(griffe.Extension):
        """Spreads all docstrings."""

        def on_instance(self, *, obj: griffe.Object, **_: object) -> None:
            if not obj.is_alias and obj.docstring is not None:
                obj.docstring.value = spread(obj.docstring.value)
