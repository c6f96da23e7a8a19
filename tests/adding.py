"""Adds a method to a copy of the checkout, with the code blocks of docs/guide/extending.md."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from blocks import ROOT, Block, blocks_of
from programs import run

PAGE = ROOT / "docs" / "guide" / "extending.md"
NEEDED = ("hvd_sparse", "tests", "examples", "docs/methods", "scripts/lib", "pyproject.toml")


def steps() -> dict[int, tuple[str, list[Block]]]:
    section = PAGE.read_text(encoding="utf-8").partition("\n## Several ranks")[0]
    parts = re.split(r"^\*\*(\d)\. ", section, flags=re.MULTILINE)
    found = {}
    for number, text in zip(parts[1::2], parts[2::2], strict=True):
        words = " ".join(re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S).split())
        blocks = blocks_of(text, f"{PAGE.name}, step {number}")
        found[int(number)] = (words, [each for each in blocks if each.action == "runs"])
    return found


def added(folder: Path, without: int = 0) -> Path:
    """Return a copy of the checkout with the page's method, except the step ``without``."""
    checkout = folder / "checkout"
    for name in NEEDED:
        target = checkout / name
        target.parent.mkdir(parents=True, exist_ok=True)
        # with what was compiled, which is told from the sources' times
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy2)(ROOT / name, target)
    for number, (words, blocks) in steps().items():
        for block in blocks if number != without else []:
            _put(checkout, words, block)
    return checkout


def _put(checkout: Path, words: str, block: Block) -> None:
    text = block.text
    if text.startswith("# hvd_sparse/"):
        path = checkout / _file_of_the_part()
        assert not path.exists()
        path.write_text(text, encoding="utf-8")
    elif text.startswith("# "):
        path = checkout / re.search(r"a page\s+`(\S+?)`", words)[1]
        assert not path.exists()
        path.write_text(text, encoding="utf-8")
    elif text.startswith("|"):
        path = checkout / re.search(r"a row of the table in `(\S+?)`", words)[1]
        _insert(path, r"^\|[- |]+\|$", text)
    elif place := re.search(r"a line of `(\w+)` in `(\S+?)`", words):
        _insert(checkout / place[2], rf"^{place[1]}\b.*= [({{\[]$", text)
    else:
        place = re.search(r"a class method of `(\w+)` in `(\S+?)`", words)
        _add_to_class(checkout / place[2], place[1], text)
        name = re.search(r"Import `(\w+)` there", words)[1]
        module = _file_of_the_part().removesuffix(".py").replace("/", ".")
        _insert(checkout / place[2], "^from __future__ .*$", f"from {module} import {name}\n")


def _file_of_the_part() -> str:
    return steps()[1][1][0].text.splitlines()[0].removeprefix("# ")


def _insert(path: Path, pattern: str, text: str) -> None:
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if re.match(pattern, line.rstrip("\n")))
    path.write_text("".join([*lines[: at + 1], text, *lines[at + 1 :]]), encoding="utf-8")


def _add_to_class(path: Path, name: str, text: str) -> None:
    source = path.read_text(encoding="utf-8")
    (found,) = [each for each in ast.parse(source).body if getattr(each, "name", "") == name]
    assert isinstance(found, ast.ClassDef)
    lines, at = source.splitlines(keepends=True), found.body[0].end_lineno
    path.write_text("".join([*lines[:at], "\n", text, *lines[at:]]), encoding="utf-8")


def tried(checkout: Path, chosen: str, *files: str) -> subprocess.CompletedProcess[str]:
    variables = {key: value for key, value in os.environ.items() if "PYTEST" not in key}
    variables["PYTHONPATH"] = str(checkout)
    pytest = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist")
    quick = [] if any("/frontends/" in each for each in files) else ["--quick"]
    return run(*pytest, *quick, "-k", chosen, *files, cwd=checkout, variables=variables)
