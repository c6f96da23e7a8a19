"""Code blocks of the documentation, and where the tests run each of them.

A comment before a block tells how it is tested. Python: ``<!-- runs: torch -->`` on real ranks with
Horovod for PyTorch, ``tensorflow`` and ``keras3`` likewise, ``python`` in a process by itself;
``torch, on`` continues the page's block before. Commands: ``sh`` runs in a folder with recorded
runs; ``ranks`` beside a program ``train.py``; ``hosts`` also, on a cluster with hosts host1, host2,
...; ``slurm`` on the same cluster with the variables of a SLURM job of three nodes. ``gpu`` runs on
a GPU; without one, the command must print that nothing was run. ``install`` runs in an empty
environment, by ``scripts/package``; ``checkout`` in the checkout itself; ``docker`` on a cluster of
containers, by ``scripts/docker-test``. ``ci`` marks commands that ``.ci/run`` contains in the same
words, as ``tests/architecture/test_guide.py`` checks. ``adding`` marks parts of files, in Python
and Markdown, for the places that docs/guide/extending.md names (``tests/adding.py``).

``<!-- shown: why it is not run -->`` marks the few blocks that no test can run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from harness import ROOT
from markdown_it import MarkdownIt

MARK = re.compile(r"<!-- (runs|shown): (.+?) -->\s*\Z", re.DOTALL)
LANGUAGES = ("python", "sh", "markdown")
PLACES = {
    "python": ("torch", "tensorflow", "keras3", "python", "adding"),
    "sh": ("sh", "ranks", "hosts", "slurm", "gpu", "install", "checkout", "ci", "docker"),
    "markdown": ("adding",),
}
TRAINING = ROOT / "tests" / "train_as_documented.py"


@dataclass(frozen=True)
class Block:
    name: str
    language: str
    action: str
    where: str
    goes_on: bool
    text: str


def pages() -> list[Path]:
    """Return README, CONTRIBUTING and every page of ``docs`` except results and decisions."""
    made = {ROOT / "docs" / "results", ROOT / "docs" / "adr"}
    found = [p for p in sorted((ROOT / "docs").rglob("*.md")) if p.parent not in made]
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *found]


def blocks_of(text: str, page: str) -> list[Block]:
    found, mark = [], None
    for token in MarkdownIt().parse(text):
        if token.type == "html_block":
            mark = MARK.search(token.content)
        elif token.type == "fence" and token.info in LANGUAGES:
            assert token.map is not None
            action, where = (mark[1], mark[2]) if mark else ("", "")
            goes_on = action == "runs" and where.endswith(", on")
            name = f"{page}:{token.map[0] + 1}"
            where = where.removesuffix(", on") if goes_on else where
            found.append(Block(name, token.info, action, where, goes_on, token.content))
            mark = None
        else:
            mark = None
    return found


def commands_of(block: Block) -> list[str]:
    lines = [line.partition(" #")[0].strip() for line in block.text.splitlines()]
    return [line for line in lines if line]


def all_blocks() -> list[Block]:
    return [
        block
        for page in pages()
        for block in blocks_of(page.read_text("utf-8"), page.relative_to(ROOT).as_posix())
    ]


def blocks_for(where: str) -> list[Block]:
    return [each for each in all_blocks() if each.action == "runs" and each.where == where]
