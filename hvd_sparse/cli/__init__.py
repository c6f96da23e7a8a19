"""The command ``hvd-sparse``, and its sub-commands ``list`` and ``cite``."""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from hvd_sparse.cli import advise, doctor, report, timeline
from hvd_sparse.errors import SparseError, UnknownName
from hvd_sparse.methods import METHODS
from hvd_sparse.registry import ALL
from hvd_sparse.version import __version__


def list_parts(options: argparse.Namespace) -> int:
    _print_section("methods", [(id, paper, "") for id, paper in METHODS.items()])
    for registry in ALL:
        parts = {id: registry.get(id) for id in registry}
        rows = [(id, part.paper, _options(part)) for id, part in parts.items()]
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
        print(f"  {id:<19} {paper or '-':<21} {options}".rstrip())
    print()


def cite(options: argparse.Namespace) -> int:
    keys = dict.fromkeys(key for name in options.names for key in _keys_of(name))
    print("\n\n".join(papers()[key] for key in keys))
    return 0


@cache
def papers() -> dict[str, str]:
    text = (Path(__file__).parents[1] / "papers.bib").read_text(encoding="utf-8")
    entries = [each.strip() for each in re.split(r"^(?=@)", text, flags=re.MULTILINE)]
    return {entry[entry.index("{") + 1 : entry.index(",")]: entry for entry in entries if entry}


def _keys_of(name: str) -> list[str]:
    """Return the citation keys for a name: the name itself if it is a citation key, otherwise the
    keys of the method and of all parts with this name. Raises UnknownName if there are none."""
    if name in papers():
        return [name]
    cited = [(id, registry.get(id).paper) for registry in ALL for id in registry]
    keys = [METHODS[name]] if name in METHODS else []
    keys += [paper for id, paper in cited if id == name and paper]
    if not keys:
        known = sorted({*METHODS, *papers(), *(id for id, paper in cited if paper)})
        raise UnknownName(
            f"no paper is known for {name!r}; the known names are: {', '.join(known)}"
        )
    return keys


def add_commands(parser: argparse.ArgumentParser) -> argparse._SubParsersAction[Any]:
    """Add the sub-commands to the parser. In the parsed options, each sets ``run`` to the function
    that runs the sub-command and returns the exit status."""
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(
        name: str, run: Callable[[argparse.Namespace], int], words: str
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=words)
        command.set_defaults(run=run)
        return command

    words = "list every method with its paper, and every part with its options and paper"
    add("list", list_parts, words)
    names = "a method, a part or a citation key, for example ldte_bs"
    cites = add("cite", cite, "print the BibTeX of methods, parts or citation keys")
    cites.add_argument("names", nargs="+", metavar="NAME", help=names)
    words = (
        "print installed versions, the engine, missing packages, and which frontends can be used"
    )
    add("doctor", doctor.run, words)
    words = "say whether compression will help, and at which density"
    advise.set_up(add("advise", advise.run, words))
    words = "compare runs: write one HTML page from the files of telemetry='jsonl'"
    report.set_up(add("report", report.run, words))
    words = "merge files of HVD_SPARSE_TIMELINE and HOROVOD_TIMELINE into one timeline"
    timeline.set_up(add("timeline", timeline.run, words))
    return commands


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a sub-command and return its exit status. After an error of this package or of the
    system, print the error and return 1."""
    parser = argparse.ArgumentParser(
        prog="hvd-sparse", description="Gradient sparsification for unmodified Horovod."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    add_commands(parser)
    options = parser.parse_args(arguments)
    try:
        return int(options.run(options))
    except (SparseError, OSError) as error:
        print(f"hvd-sparse: {error}", file=sys.stderr)
        return 1
