"""Docstrings of the house as mkdocstrings reads numpydoc: a description stands under its name."""

from __future__ import annotations

import re

import griffe

SECTION = re.compile(r"^(Parameters|Attributes|Raises|Returns|Yields|Examples)\n-+$", re.MULTILINE)
ENTRY = re.compile(r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*) : ?(.*)$")


class Spread(griffe.Extension):
    """Puts ``name : words`` on two lines, as what follows the colon is a type to numpydoc."""

    def on_instance(self, *, obj: griffe.Object, **_: object) -> None:
        if obj.docstring is not None and not obj.is_alias:
            obj.docstring.value = spread(obj.docstring.value)


def spread(text: str) -> str:
    """Return a docstring with every description under its name."""
    lines, section = [], ""
    previous = ""
    for line in text.split("\n"):
        if set(line) == {"-"} and SECTION.match(f"{previous}\n{line}"):
            section = previous
        elif not line.strip() and section == "Examples":
            pass
        entry = ENTRY.match(line) if section in ("Parameters", "Attributes", "Raises") else None
        if entry and section != "Raises":
            lines += [f"{entry[1]}", f"    {entry[2]}"]
        elif entry:
            lines += [entry[1], f"    {entry[2]}"]
        else:
            lines.append(line[:-1] if line.endswith("::") else line)
        previous = line
    return "\n".join(lines)
