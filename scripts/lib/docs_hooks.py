"""Hooks of MkDocs, which generate the parts of the site that are no files of ``docs``.

A method's page gets its parts, signature, measurements and paper.  A section of the navigation
that names a folder gets the folder's pages.  Decisions get an index.  Every page of a method, a
result or a decision links to its index.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from pathlib import Path

from mkdocs.structure.files import File, Files

from hvd_sparse.cli import add_commands, papers
from hvd_sparse.configuration import Configuration
from hvd_sparse.methods import METHODS, Methods

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).parent))
import curves  # noqa: E402 - MkDocs loads this file by its path

DOCS = ROOT / "docs"
DECISIONS = "[All decisions](index.md)."
KINDS = ("selector", "memory", "codec", "exchange", "schedule")


class Probe(Methods):
    """The methods, returning objects with a configuration instead of compressors."""

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration

    def log_footprint(self) -> None:
        pass

    @classmethod
    def _create(cls, params: object, configuration: Configuration, *_: object) -> Methods:
        return cls(configuration)


def on_config(config):
    """Replace ``[folder/*]`` by the folder's pages, and append unnamed pages to the guide."""
    config.nav = [_expanded(entry) for entry in config.nav]
    named = str(config.nav)
    guide = next(entry["Guide"] for entry in config.nav if "Guide" in entry)
    for path in sorted([*DOCS.glob("*.md"), *(DOCS / "guide").glob("*.md")]):
        name = path.relative_to(DOCS).as_posix()
        if f"'{name}'" not in named:
            guide.append({_title(path): name})
    return config


def on_files(files: Files, config) -> Files:
    """Add an index of the decisions, CONTRIBUTING.md, and a page of all commands."""
    text = "# Decisions\n\nEach page explains one decision about the design of the package.\n\n"
    for path in sorted((DOCS / "adr").glob("*.md")):
        text += f"* [{_title(path)}]({path.name})\n"
    files.append(File.generated(config, "adr/index.md", content=text))
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").replace("](docs/", "](")
    files.append(File.generated(config, "contributing.md", content=guide))
    files.append(File.generated(config, "guide/commands.md", content=_commands()))
    return files


def on_page_markdown(markdown: str, page, **_: object) -> str:
    """Add generated sections to a method's page, and a link to the index to a result or decision.

    Links to CONTRIBUTING.md are changed, so that they lead to its page on the site.
    """
    up = "../" * page.file.src_uri.count("/")
    markdown = re.sub(r"\]\((?:\.\./)+CONTRIBUTING\.md", f"]({up}contributing.md", markdown)
    folder, _, file = page.file.src_uri.partition("/")
    if folder in ("results", "adr") and file != "index.md":
        title, _, text = markdown.partition("\n")
        opening = _use_of_result(file) if folder == "results" else DECISIONS
        return "\n\n".join([title, opening, text])
    name = page.file.src_uri.removeprefix("methods/").removesuffix(".md")
    if not page.file.src_uri.startswith("methods/") or name not in METHODS:
        return markdown
    parts = (_opening, _parts, _curve, _measured, _cost, _accuracy, _signature, _paper)
    title, _, text = markdown.partition("\n")
    first, *others = (part(name) for part in parts)
    return "\n\n".join([title, first, text.strip(), *filter(None, others)])


def _use_of_result(file: str) -> str:
    """Return the description of a page of results from its line in their index."""
    index = (DOCS / "results" / "index.md").read_text(encoding="utf-8")
    (shown,) = re.findall(rf"^\* \[[^]]+\]\({re.escape(file)}\): (.+)$", index, re.M)
    return f"{shown[0].upper()}{shown[1:]}. [All results](index.md)."


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
    """Return a page with the help text of every command."""
    commands = add_commands(argparse.ArgumentParser(prog="hvd-sparse"))
    text = (
        "# Commands\n\nEvery command of `hvd-sparse` prints this text with `--help`. "
        "`python -m hvd_sparse` is the same program.\n"
    )
    helps = {each.dest: each.help for each in commands._get_subactions()}
    for name, each in commands.choices.items():
        each.formatter_class = lambda prog: argparse.HelpFormatter(prog, width=96)
        text += f"\n## {name}\n\n{helps[name]}\n\n```\n{each.format_help()}```\n"
    return text


def _title(path: Path) -> str:
    return path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")


def _configuration(name: str) -> Configuration:
    """Return a method's configuration with its defaults."""
    method = getattr(Probe, name)
    needed = {"density": 0.001, "threshold": 0.01}
    parameters = inspect.signature(method).parameters
    options = {key: value for key, value in needed.items() if key in parameters}
    made: Configuration = method([], **options).configuration
    return made


def _opening(name: str) -> str:
    return f"Call it as `Compression.{name}`. [All methods](index.md)."


def _parts(name: str) -> str:
    described = _configuration(name).describe()
    lines = ["## Parts", "", "| part | id | options |", "|---|---|---|"]
    for kind in KINDS:
        if described[kind] is None:  # the method decides by itself
            continue
        options = dict(described[kind])
        identity = options.pop("id")
        values = ", ".join(f"`{key}={value!r}`" for key, value in options.items())
        lines.append(f"| {kind} | `{identity}` | {values} |")
    return "\n".join(lines)


def _measured(name: str) -> str:
    """Return the table of the method's achieved density and passes over memory."""
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
            "The number of sent entries divided by the requested number, and the number of passes "
            "over the tensor, on gradients of three small models "
            "([achieved density](../results/achieved-density.md)).",
            "",
            head,
            "|---|---|" + "---:|" * 6,
            *rows,
        ]
    )


def _curve(name: str) -> str:
    """Return the curve of a short training, and its table of accuracy, bytes and overhead."""
    source = (
        "A short training, compared with dense training ([how](../results/curves.md)). The curve "
        "shows the mean test accuracy in percent; the table shows accuracy, bytes and the "
        "overhead of a worker."
    )
    head = "## Learning curve and cost"
    return "\n\n".join([head, source, curves.drawn(name), curves.table_of(name)])


def _cost(name: str) -> str:
    """Return the method's rows of the page on selection cost with all variants."""
    page = (DOCS / "results" / "selecting-variants.md").read_text(encoding="utf-8")
    rows = re.findall(rf"^\| `{name}(?:,[^`]*)?` \|.*$", page, re.M)
    head = re.search(r"^\| method \|.*\n\| -.*$", page, re.M)
    if not rows or not head:
        return ""
    source = "Measured in one thread ([how](../results/selecting-variants.md))."
    return "\n".join(["## Selection cost", "", source, "", head[0], *rows])


def _accuracy(name: str) -> str:
    """Return the method's rows of the accuracy page."""
    page = (DOCS / "results" / "accuracy-methods.md").read_text(encoding="utf-8")
    found = []
    for title, table in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", page, re.M | re.S):
        rows = re.findall(rf"^\| \w+ \| {name}(?:,[^|]*)? \|.*$", table, re.M)
        head = re.search(r"^\| optimizer \|.*\n\| -.*$", table, re.M)
        if rows and head:
            dense = re.findall(r"^\| \w+ \| dense \|.*$", table, re.M)
            found += [f"### {title}", "", head[0], *dense, *rows, ""]
    if not found:
        return ""
    source = "Accuracy after training ([how](../results/accuracy-methods.md))."
    source += "\n\n![Learning curves](../results/accuracy-methods.png)"
    return "\n".join(["## Accuracy", "", source, "", *found])


def _signature(name: str) -> str:
    return f"## In code\n\n::: hvd_sparse.methods.Methods.{name}"


def _paper(name: str) -> str:
    key = METHODS[name]
    return f"## Paper\n\n`hvd-sparse cite {name}` prints it:\n\n```bibtex\n{papers()[key]}\n```"
