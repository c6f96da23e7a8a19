"""Hooks of MkDocs: what the site has besides the files of ``docs``.

A method's page gets its parts, its signature, what was measured of it and its paper; sections of
the navigation that name a folder get its pages; decisions get an index.  Pages of results and
decisions begin, as all others do, with what their reader can do after them.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from pathlib import Path

from mkdocs.structure.files import File, Files

from hvd_sparse.cli import COMMANDS
from hvd_sparse.cli.cite import papers
from hvd_sparse.configuration import Configuration
from hvd_sparse.methods import METHODS, Methods

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).parent))
import curves  # noqa: E402 - MkDocs loads this file by its path

DOCS = ROOT / "docs"
USE = (
    "After this page you can say why this is built as it is, and what was weighed against it. "
    "[All decisions](index.md)."
)
"""What every decision is for."""
KINDS = ("selector", "memory", "codec", "exchange", "schedule")


class Probe(Methods):
    """Makes configurations in the place of compressors."""

    @classmethod
    def _create(cls, params: object, configuration: Configuration, *_: object) -> Configuration:
        return configuration


def on_config(config):
    """Put a folder's pages in the place of ``[folder/*]``, and the guide's further pages behind."""
    config.nav = [_expanded(entry) for entry in config.nav]
    told = str(config.nav)
    guide = next(entry["Guide"] for entry in config.nav if "Guide" in entry)
    for path in sorted([*DOCS.glob("*.md"), *(DOCS / "guide").glob("*.md")]):
        name = path.relative_to(DOCS).as_posix()
        if f"'{name}'" not in told:
            guide.append({_title(path): name})
    return config


def on_files(files: Files, config) -> Files:
    """Add an index of the decisions, and the guide for contributors, which lies beside ``docs``."""
    text = "# Decisions\n\nAfter this page you can find out why something is built as it is.\n\n"
    for path in sorted((DOCS / "adr").glob("*.md")):
        text += f"* [{_title(path)}]({path.name})\n"
    files.append(File.generated(config, "adr/index.md", content=text))
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").replace("](docs/", "](")
    files.append(File.generated(config, "contributing.md", content=guide))
    files.append(File.generated(config, "guide/commands.md", content=_commands()))
    return files


def on_page_markdown(markdown: str, page, **_: object) -> str:
    """Say more about a method than its author has to write, and what a result or a decision is
    for; lead to the contributors' guide."""
    up = "../" * page.file.src_uri.count("/")
    markdown = re.sub(r"\]\((?:\.\./)+CONTRIBUTING\.md", f"]({up}contributing.md", markdown)
    folder, _, file = page.file.src_uri.partition("/")
    if folder in ("results", "adr") and file != "index.md":
        title, _, text = markdown.partition("\n")
        return "\n\n".join([title, _use_of_result(file) if folder == "results" else USE, text])
    name = page.file.src_uri.removeprefix("methods/").removesuffix(".md")
    if not page.file.src_uri.startswith("methods/") or name not in METHODS:
        return markdown
    parts = (_opening, _parts, _curve, _measured, _cost, _accuracy, _signature, _paper)
    title, _, text = markdown.partition("\n")
    first, *others = (part(name) for part in parts)
    return "\n\n".join([title, first, text.strip(), *filter(None, others)])


def _use_of_result(file: str) -> str:
    """Return what a page of results is for, by its line in their index."""
    index = (DOCS / "results" / "index.md").read_text(encoding="utf-8")
    (shown,) = re.findall(rf"^\* \[[^]]+\]\({re.escape(file)}\): (.+)$", index, re.M)
    return f"After this page you can tell from figures: {shown}. [All results](index.md)."


def _expanded(entry: dict) -> dict:
    """Return an entry of the navigation with the pages of the folder it names."""
    ((name, pages),) = entry.items()
    if not isinstance(pages, list) or not str(pages[0]).endswith("/*"):
        return entry
    folder = pages[0].removesuffix("/*")
    found = sorted(each for each in (DOCS / folder).glob("*.md") if each.stem != "index")
    return {
        name: [f"{folder}/index.md", *({_title(each): f"{folder}/{each.name}"} for each in found)]
    }


def _commands() -> str:
    """Return a page with what every command says of itself."""
    parser = argparse.ArgumentParser(prog="hvd-sparse")
    commands = parser.add_subparsers()
    for module in COMMANDS:
        module.add_parser(commands)
    text = (
        "# Commands\n\nAfter this page you can look up every option of `hvd-sparse`. Each command "
        "tells the same with `--help`; `python -m hvd_sparse` is another name of it.\n"
    )
    told = {each.dest: each.help for each in commands._get_subactions()}
    for name, each in commands.choices.items():
        each.formatter_class = lambda prog: argparse.HelpFormatter(prog, width=96)
        text += f"\n## {name}\n\n{told[name]}\n\n```\n{each.format_help()}```\n"
    return text


def _title(path: Path) -> str:
    return path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")


def _configuration(name: str) -> Configuration:
    """Return what a method is made of, with its defaults."""
    method = getattr(Probe, name)
    needed = {"density": 0.001, "threshold": 0.01}
    parameters = inspect.signature(method).parameters
    told = {key: value for key, value in needed.items() if key in parameters}
    made: Configuration = method([], **told)
    return made


def _opening(name: str) -> str:
    return (
        f"After this page you can train with `{name}`, know what it sends and costs, and how "
        f"it differs from its paper. [All methods](index.md)."
    )


def _parts(name: str) -> str:
    told_of = _configuration(name).describe()
    lines = ["## Parts", "", "| part | id | options |", "|---|---|---|"]
    for kind in KINDS:
        if told_of[kind] is None:  # the method decides by itself
            continue
        options = dict(told_of[kind])
        identity = options.pop("id")
        told = ", ".join(f"`{key}={value!r}`" for key, value in options.items())
        lines.append(f"| {kind} | `{identity}` | {told} |")
    return "\n".join(lines)


def _measured(name: str) -> str:
    """Return how near the method comes to its density, and in how many passes."""
    selector = _configuration(name).describe()["selector"]["id"]
    page = (DOCS / "results" / "achieved-density.md").read_text(encoding="utf-8")
    rows = []
    for density, table in re.findall(r"^## Density (\S+)\n(.*?)(?=^## |\Z)", page, re.M | re.S):
        for row in re.findall(rf"^\| `{selector}(?:, [^`]*)?` \|.*$", table, re.M):
            rows.append(f"| {density} {row}")
    if not rows:
        return ""
    head = "| density | selector | p5 | median | p95 | passes, mean | passes, p95 | fallbacks |"
    return "\n".join(
        [
            "## Measured",
            "",
            "Entries sent over entries asked for, and passes over the tensor, for gradients of "
            "three small models: [achieved density](../results/achieved-density.md).",
            "",
            head,
            "|---|---|" + "---:|" * 6,
            *rows,
        ]
    )


def _curve(name: str) -> str:
    """Return how a short training went, what it sent, and what it worked."""
    source = (
        "A short training beside dense, from [a page that says how](../results/curves.md): mean "
        "test accuracy in percent over steps, and then accuracy, bytes and a worker's own work."
    )
    return "\n\n".join(["## Curve and cost", source, curves.drawn(name), curves.table_of(name)])


def _cost(name: str) -> str:
    """Return the lines of the page on choosing with all variants that are the method's."""
    page = (DOCS / "results" / "selecting-variants.md").read_text(encoding="utf-8")
    rows = re.findall(rf"^\| `{name}(?:,[^`]*)?` \|.*$", page, re.M)
    head = re.search(r"^\| method \|.*\n\| -.*$", page, re.M)
    if not rows or not head:
        return ""
    source = (
        "Choosing, on one thread, from [a page that says how](../results/selecting-variants.md)."
    )
    return "\n".join(["## Cost of choosing", "", source, "", head[0], *rows])


def _accuracy(name: str) -> str:
    """Return the lines of the accuracy page that are the method's."""
    page = (DOCS / "results" / "accuracy.md").read_text(encoding="utf-8")
    found = []
    for title, table in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", page, re.M | re.S):
        rows = re.findall(rf"^\| \w+ \| {name}(?:,[^|]*)? \|.*$", table, re.M)
        head = re.search(r"^\| optimizer \|.*\n\| -.*$", table, re.M)
        if rows and head:
            dense = re.findall(r"^\| \w+ \| dense \|.*$", table, re.M)
            found += [f"### {title}", "", head[0], *dense, *rows, ""]
    if not found:
        return ""
    source = "What training reached, from [accuracy](../results/accuracy.md), which says how."
    source += "\n\n![Learning curves](../results/accuracy.png)"
    return "\n".join(["## Accuracy", "", source, "", *found])


def _signature(name: str) -> str:
    return f"## In code\n\n::: hvd_sparse.methods.Methods.{name}"


def _paper(name: str) -> str:
    key = METHODS[name]
    return f"## Paper\n\n`hvd-sparse cite {name}` prints it:\n\n```bibtex\n{papers()[key]}\n```"
