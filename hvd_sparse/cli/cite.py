"""The command ``hvd-sparse cite``: prints the BibTeX entries of methods and parts."""

from __future__ import annotations

import argparse

from hvd_sparse.cli._commands import Commands
from hvd_sparse.errors import UnknownName
from hvd_sparse.methods import METHODS
from hvd_sparse.papers import PAPERS, bibtex
from hvd_sparse.registry import ALL


def add_parser(commands: Commands) -> None:
    """Add the sub-command to the parser."""
    parser = commands.add_parser("cite", help="print the BibTeX of methods, parts or citation keys")
    parser.add_argument("names", nargs="+", metavar="NAME", help="for instance ldte_bs")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the sub-command; return its exit code."""
    keys = dict.fromkeys(key for name in options.names for key in _keys_of(name))
    print("\n\n".join(bibtex(key) for key in keys))
    return 0


def _keys_of(name: str) -> list[str]:
    """Return the citation keys of a name: of a method, of every part of that id, or the key
    itself."""
    if name in PAPERS:
        return [name]
    parts = [registry.get(name) for registry in ALL if name in registry.ids()]
    keys = [METHODS[name]] if name in METHODS else []
    keys += [part.paper for part in parts if getattr(part, "paper", None)]
    if not keys:
        known = sorted({*METHODS, *PAPERS, *(id for registry in ALL for id in registry)})
        raise UnknownName(f"nothing called {name!r} has a paper; names: {', '.join(known)}")
    return keys
