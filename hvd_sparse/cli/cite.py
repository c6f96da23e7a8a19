"""The command ``hvd-sparse cite``: prints the BibTeX entries of methods and parts."""

from __future__ import annotations

import argparse
import re
from functools import cache
from pathlib import Path

from hvd_sparse.errors import UnknownName
from hvd_sparse.methods import METHODS
from hvd_sparse.registry import ALL


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's arguments to its parser."""
    parser.add_argument("names", nargs="+", metavar="NAME", help="for instance ldte_bs")


def run(options: argparse.Namespace) -> int:
    """Run the sub-command; return its exit code."""
    keys = dict.fromkeys(key for name in options.names for key in _keys_of(name))
    print("\n\n".join(papers()[key] for key in keys))
    return 0


@cache
def papers() -> dict[str, str]:
    """Return the entries of ``hvd_sparse/papers.bib`` by citation key."""
    text = (Path(__file__).parents[1] / "papers.bib").read_text(encoding="utf-8")
    entries = [each.strip() for each in re.split(r"^(?=@)", text, flags=re.MULTILINE)]
    return {entry[entry.index("{") + 1 : entry.index(",")]: entry for entry in entries if entry}


def _keys_of(name: str) -> list[str]:
    """Return the citation keys of a name: of a method, of every part of that id, or the key
    itself."""
    if name in papers():
        return [name]
    parts = [registry.get(name) for registry in ALL if name in registry.ids()]
    keys = [METHODS[name]] if name in METHODS else []
    keys += [part.paper for part in parts if getattr(part, "paper", None)]
    if not keys:
        known = sorted({*METHODS, *papers(), *(id for registry in ALL for id in registry)})
        raise UnknownName(f"nothing called {name!r} has a paper; names: {', '.join(known)}")
    return keys
