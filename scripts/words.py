#!/usr/bin/env python
"""Count words to avoid in pages and docstrings, and draw random texts for a reader.

    scripts/words.py                                  rates per 1,000 words, here
    scripts/words.py ../optax/optax ../optax/docs     the same for another project, to compare
    scripts/words.py --draw --seed 7                  60 sentences and 30 docstrings to read
    scripts/words.py --where what                     every sentence that has the word

Pages are Markdown and reStructuredText without code.  Folders called results are left out, unless
they are named, because commands write their pages.  Docstrings are those of Python files, without
their examples.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HERE = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "docs", "hvd_sparse")]
HABITS = {
    "what": r"what",
    "who": r"who|whom|nobody",
    "told": r"told|tells?",
    "says": r"says?|said",
    "because": r"because",
    "for example": r"for example|for instance|e\.g\.",
}
"""Words that are counted. Good texts have few of the first four, and some of the last two."""
SHORTEST = 5
"""Smallest number of words of a text that is drawn as a sentence."""


def prose(text: str) -> str:
    """Return the text of a page without code blocks, comments, links' addresses and bold type."""
    text = re.sub(r"^([ \t]*)(```|~~~).*?^\1\2[^\n]*$", "", text, flags=re.M | re.S)
    text = re.sub(r"<!--.*?-->|^:::[^\n]*$|^\.\. [^\n]*$|^[-| :=~]+$", "", text, flags=re.M | re.S)
    return re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", text).replace("**", "")


def docstrings(path: Path) -> Iterator[tuple[str, str]]:
    """Yield every docstring of a Python file with its name, without examples and underlines."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text:
                name = f"{path}:{getattr(node, 'lineno', 1)} {getattr(node, 'name', 'module')}"
                yield name, re.sub(r"^\s*(>>>|\.\.\.( |$)|---).*$", "", text, flags=re.M)


def files(paths: Sequence[Path]) -> Iterator[Path]:
    """Yield the pages and Python files at or below the paths."""
    for path in paths:
        found = [path] if path.is_file() else sorted(path.rglob("*"))
        for each in found:
            is_result = each.parent.name == "results" and each.parent != path and path != each
            if each.suffix in (".md", ".rst", ".py") and not is_result:
                yield each


def sentences(text: str) -> list[str]:
    """Return the sentences that are long enough to judge, without headings and tables."""
    found = []
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[*-]|\d+\.) )|^(?:#+ |\|).*$", text, flags=re.M):
        flat = re.sub(r"^(?:[*-]|\d+\.) ", "", " ".join(block.split()))
        found += re.split(r"(?<=[.!?])\s+(?=[A-Z*`])", flat)
    return [each for each in found if len(each.split()) >= SHORTEST and each[-1] in ".!?:)"]


def rates(texts: Sequence[str]) -> list[float]:
    """Return the number of words of some texts, and for each habit its number in 1,000 words."""
    whole = "\n".join(re.sub(r"``[^`]*``|`[^`\n]*`", "", text) for text in texts)
    words = len(re.findall(r"[A-Za-z']+", whole))
    return [words] + [
        1000 * len(re.findall(rf"\b(?:{habit})(?!\w)", whole, re.I)) / max(words, 1)
        for habit in HABITS.values()
    ]


def main() -> int:
    """Print the counts, the sample, or the places of a word."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", type=Path, help="pages, packages or folders")
    parser.add_argument("--draw", action="store_true", help="print random sentences and docstrings")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draw (default 0)")
    parser.add_argument("--sentences", type=int, default=60, help="how many to draw (default 60)")
    parser.add_argument("--docstrings", type=int, default=30, help="how many to draw (default 30)")
    parser.add_argument("--where", metavar="WORD", help="print every sentence with this word")
    options = parser.parse_args()
    pages: list[tuple[str, str]] = []
    strings: list[tuple[str, str]] = []
    for path in files(options.paths or HERE):
        if path.suffix == ".py":
            strings += docstrings(path)
        else:
            pages.append((str(path), prose(path.read_text(encoding="utf-8"))))
    read = [(name, each) for name, text in pages for each in sentences(text)]
    if options.where:
        pattern = re.compile(rf"\b{re.escape(options.where)}\b", re.I)
        cut = [(name, each) for name, text in strings for each in sentences(text)]
        print(*(f"{name}: {each}" for name, each in read + cut if pattern.search(each)), sep="\n")
    elif options.draw:
        draw = random.Random(options.seed)
        for title, among, count in (
            ("sentence", read, options.sentences),
            ("docstring", strings, options.docstrings),
        ):
            for number, (name, text) in enumerate(draw.sample(among, min(count, len(among))), 1):
                print(f"--- {title} {number}, {name}\n{text}\n")
    else:
        print(f"{'per 1,000 words':16}{'words':>9}" + "".join(f"{each:>13}" for each in HABITS))
        for title, texts in (("pages", pages), ("docstrings", strings)):
            words, *found = rates([text for _, text in texts])
            print(f"{title:16}{words:9,.0f}" + "".join(f"{each:13.1f}" for each in found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
