"""``hvd-sparse cite``: the BibTeX entries of what was used."""

from __future__ import annotations

import argparse
from typing import Any

from hvd_sparse.errors import UnknownName
from hvd_sparse.methods import METHODS
from hvd_sparse.papers import PAPERS, bibtex
from hvd_sparse.registry import ALL


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("cite", help="print the BibTeX of methods, parts or citation keys")
    parser.add_argument("names", nargs="+", metavar="NAME", help="for instance ldte_bs")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    keys = dict.fromkeys(key for name in options.names for key in _keys_of(name))
    print("\n\n".join(bibtex(key) for key in keys))
    return 0


def _keys_of(name: str) -> list[str]:
    """The citation keys behind a name: of a method, of every part of that id, or itself."""
    if name in PAPERS:
        return [name]
    parts = [registry.get(name) for registry in ALL if name in registry.ids()]
    keys = [METHODS[name]] if name in METHODS else []
    keys += [part.paper for part in parts if getattr(part, "paper", None)]
    if not keys:
        known = sorted({*METHODS, *PAPERS, *(id for registry in ALL for id in registry)})
        raise UnknownName(f"nothing called {name!r} has a paper; names: {', '.join(known)}")
    return keys
