"""Rewrite docstrings for mkdocstrings, which expects a description on the line below its name."""

from __future__ import annotations

import re

try:
    import griffe
except ImportError:  # a test uses only ``spread``, without griffe
    griffe = None

SECTIONS = ("Parameters", "Attributes", "Raises")
ENTRY = re.compile(r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*) : ?(.*)$")


def spread(text: str) -> str:
    """Return a docstring with every description on the line below its name, as in numpydoc.

    In ``name : words``, mkdocstrings would read the words as a type. Before the first section, such
    entries become a list. Two colons at the end of a line, which begin code in reStructuredText,
    become one colon.
    """
    lines: list[str] = []
    section, others = "", ""
    for line, after in zip(text.split("\n"), [*text.split("\n")[1:], ""]):
        if after and set(after) == {"-"}:
            section = line
        entry = ENTRY.match(line) if section in SECTIONS else None
        if not section and (named := ENTRY.match(line)):
            line = f"* {named[1]}: {named[2]}"
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
    """Return the last entry's description again for each further name of the entry."""
    if not names:
        return []
    start = max(i for i, line in enumerate(lines) if not line.startswith(" "))
    return [line for name in names.split(", ") for line in (name, *lines[start + 1 :])]


if griffe is not None:

    class Spread(griffe.Extension):
        """Applies ``spread`` to all docstrings."""

        def on_instance(self, *, obj: griffe.Object, **_: object) -> None:
            if not obj.is_alias and obj.docstring is not None:
                obj.docstring.value = spread(obj.docstring.value)
