"""The form of docstrings, read from the source: ``python tests/architecture/docstring_form.py``
counts by folder what is against it, ``... FOLDER`` prints each of them."""

from __future__ import annotations

import ast
import itertools
import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple, Union

PACKAGE = Path(__file__).resolve().parents[2] / "hvd_sparse"
NO_OPENING = ("What", "Whether", "Of", "How", "Where", "Who", "When", "Which", "Because")
"""Words after which the reader must wait for the subject."""
HEADINGS = ("Parameters", "Returns", "Raises", "Example", "Examples", "Attributes")

FOR_USERS = {
    "registry": ("Registry.create", "Registry.resolve"),
    "selectors.contract": ("Selector.select",),
    "codecs.contract": ("Codec.encode", "Codec.decode"),
    "configuration": ("Configuration.create",),
    "methods.builder": ("Builder.build",),
    "frontend.compressor": (
        "Compressor.stats",
        "Compressor.config",
        "Compressor.state_dict",
        "Compressor.load_state_dict",
    ),
    "frontend.durable": ("DurableCompressor.save", "DurableCompressor.load"),
}
"""Functions that a user calls, by module: they have every section that applies."""

Owner = Union[ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef]


class Fault(NamedTuple):
    """One docstring that is against the form."""

    path: Path
    line: int
    name: str
    reason: str

    @property
    def folder(self) -> str:
        """Return the folder below the package, "." for the package's own files."""
        return str(self.path.relative_to(PACKAGE).parent)

    def __str__(self) -> str:
        where = f"{self.path.relative_to(PACKAGE.parent)}:{self.line}"
        return f"{where}: {self.name}: {self.reason}"


def owners(tree: ast.Module) -> Iterator[tuple[str, Owner]]:
    """Yield what must have a docstring, with its name.

    That is the module, and its public classes and functions, with the public methods of classes.
    What lies inside a function is its own affair, and so is a method whose name another class
    states: see ``is_stated_elsewhere``.
    """
    yield "module", tree
    yield from _members(tree, "")


def _members(owner: ast.Module | ast.ClassDef, prefix: str) -> Iterator[tuple[str, Owner]]:
    for node in owner.body:
        named = isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        if named and not node.name.startswith("_") and not is_stated_elsewhere(node):
            yield prefix + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from _members(node, f"{prefix}{node.name}.")


def is_stated_elsewhere(node: Owner) -> bool:
    """Return whether a function is the setter of a property, or one of several overloads."""
    decorators = getattr(node, "decorator_list", ())
    words = {each.attr for each in decorators if isinstance(each, ast.Attribute)}
    words |= {each.id for each in decorators if isinstance(each, ast.Name)}
    return bool(words & {"setter", "overload"})


def faults_of(docstring: str | None, contracted: bool = False) -> list[str]:
    """Return what is wrong with one docstring.

    Parameters
    ----------
    docstring : None where there is none
    contracted : the contract that a method fulfils says what it does, so it needs no docstring
    """
    if docstring is None:
        return [] if contracted else ["no docstring"]
    found = []
    first = re.match(r"[A-Za-z]+\b", docstring)
    if first and first[0] in NO_OPENING:
        found.append(f"opens with {first[0]}")
    if re.match(r"[a-z]{2,}\b", docstring):  # a symbol, or a name such as gTop-k, may
        found.append("opens in lower case")
    paragraph = docstring.strip().split("\n\n")[0]
    if not re.search(r"[.:]([\s\"')`\]]|$)", paragraph):
        found.append("the first sentence has no end")
    return found


@cache
def _trees() -> dict[Path, ast.Module]:
    """Return every file of the package, parsed."""
    paths = sorted(PACKAGE.rglob("*.py"))
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}


@cache
def _stated(path: Path) -> frozenset[str]:
    """Return the methods that the classes of one file document."""
    return frozenset(
        member.name
        for node in ast.walk(_trees()[path])
        if isinstance(node, ast.ClassDef)
        for member in node.body
        if isinstance(member, ast.FunctionDef) and ast.get_docstring(member)
    )


def stated_by_contract(path: Path) -> frozenset[str]:
    """Return the methods that ``contract.py`` of a file's folder, or of one above, documents.

    A part that does what its contract says needs no words of its own.
    """
    inside = [folder for folder in path.parents if folder.is_relative_to(PACKAGE)]
    found = [folder / "contract.py" for folder in inside if folder / "contract.py" in _trees()]
    return frozenset().union(*map(_stated, (each for each in found if each != path)))


@cache
def _classes() -> dict[str, list[ast.ClassDef]]:
    """Return the classes of the package by name."""
    found: dict[str, list[ast.ClassDef]] = {}
    for tree in _trees().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(node)
    return found


@cache
def _stated_by_ancestors(owner: str) -> frozenset[str]:
    """Return the methods that the ancestors of a class document, by the class's name."""
    bases = [base for node in _classes().get(owner, ()) for base in node.bases]
    names = {ast.unparse(base).split("[")[0].split(".")[-1] for base in bases} - {owner}
    return frozenset().union(*(_documented(name) | _stated_by_ancestors(name) for name in names))


def _documented(owner: str) -> frozenset[str]:
    """Return the methods that a class documents itself, by the class's name."""
    members = [member for node in _classes().get(owner, ()) for member in node.body]
    return frozenset(
        member.name
        for member in members
        if isinstance(member, ast.FunctionDef) and ast.get_docstring(member)
    )


@cache
def faults() -> tuple[Fault, ...]:
    """Return every fault of the package, file by file."""
    found = []
    for path, tree in _trees().items():
        contract = stated_by_contract(path)
        for name, node in owners(tree):
            owner, _, own = name.rpartition(".")
            contracted = own in contract or (
                bool(owner) and own in _stated_by_ancestors(owner.split(".")[-1])
            )
            line = getattr(node, "lineno", 1)
            found += [
                Fault(path, line, name, reason)
                for reason in faults_of(ast.get_docstring(node), contracted)
            ]
    return tuple(found)


def function(module: str, name: str) -> ast.FunctionDef:
    """Return the definition of a function, by its module below the package and its name there."""
    tree = _trees()[PACKAGE / f"{module.replace('.', '/')}.py"]
    return next(node for named, node in owners(tree) if named == name)  # type: ignore[return-value]


def missing_sections(node: ast.FunctionDef) -> list[str]:
    """Return the sections that a function which users call lacks.

    Parameters, where it takes any; Returns, where it returns something and its first word is not
    "Return"; and where it takes any, Raises or Examples.
    """
    docstring = ast.get_docstring(node) or ""
    there = sections(docstring)
    if docstring.startswith("Return "):
        there.add("Returns")
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    has_parameters = any(each.arg not in ("self", "cls") for each in arguments)
    returns = ast.unparse(node.returns) if node.returns else "None"
    wanted = []
    if has_parameters and "Parameters" not in there:
        wanted.append("Parameters")
    if returns not in ("None", "NoReturn") and "Returns" not in there:
        wanted.append("Returns")
    if has_parameters and not there & {"Raises", "Example", "Examples"}:
        wanted.append("Raises or Example")
    return wanted


def sections(docstring: str) -> set[str]:
    """Return the headed sections of a docstring in numpy's form, and "Example" for a prompt."""
    lines = docstring.splitlines()
    headed = {
        title.strip()
        for title, rule in itertools.pairwise(lines)
        if title.strip() in HEADINGS and set(rule.strip()) == {"-"}
    }
    return headed | ({"Example"} if ">>> " in docstring else set())


def main(folders: list[str]) -> None:
    """Print the faults of these folders, or how many there are in each."""
    found = faults()
    for fault in found:
        if fault.folder in folders:
            print(fault)
    for module, names in FOR_USERS.items():
        for name in names:
            if not folders and (lacking := missing_sections(function(module, name))):
                print(f"hvd_sparse.{module}.{name} lacks {', '.join(lacking)}")
    if not folders:
        for folder, count in sorted(Counter(fault.folder for fault in found).items()):
            print(f"{count:5} {folder}")
        print(f"{len(found):5} in all")


if __name__ == "__main__":
    main(sys.argv[1:])
