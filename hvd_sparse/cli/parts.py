"""The command ``hvd-sparse list``: prints every registered part with its options and paper."""

from __future__ import annotations

import argparse
import dataclasses

from hvd_sparse.methods import METHODS
from hvd_sparse.registry import ALL


def run(options: argparse.Namespace) -> int:
    """Run the sub-command; return its exit code."""
    _print_section("methods", [(id, paper, "") for id, paper in METHODS.items()])
    for registry in ALL:
        rows = [
            (id, getattr(registry.get(id), "paper", None), _options(registry.get(id)))
            for id in registry
        ]
        _print_section(registry.kind, rows)
    return 0


def _options(part: type) -> str:
    fields = [field for field in dataclasses.fields(part) if field.init]
    return ", ".join(
        f.name if f.default is dataclasses.MISSING else f"{f.name}={f.default!r}" for f in fields
    )


def _print_section(title: str, rows: list[tuple[str, str | None, str]]) -> None:
    print(f"{title}:")
    for id, paper, options in rows:
        print(f"  {id:<16} {paper or '-':<20} {options}".rstrip())
    print()
