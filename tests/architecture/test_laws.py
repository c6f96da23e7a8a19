"""docs/laws.md names tests that exist, and holds every number that is cited."""

import ast
import re
from pathlib import Path

import pytest
from harness import ROOT

TEXT = (ROOT / "docs" / "laws.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TEXT)
CITATION = re.compile(
    r"\b(laws?|invariants?) (\d+)((?:(?:, | and | to |, and )\d+)*)", re.IGNORECASE
)


def functions_of(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def numbered(kind):
    laws, _, invariants = TEXT.partition("## Invariants")
    text = laws if kind.lower().startswith("law") else invariants
    return {int(number) for number in re.findall(r"^(\d+)\. ", text, re.MULTILINE)}


def citations(text):
    found = set()
    for kind, first, more in CITATION.findall(text):
        numbers = [int(first), *map(int, re.findall(r"\d+", more))]
        found |= {(kind.lower().rstrip("s"), number) for number in numbers}
    return found


@pytest.mark.parametrize(("file", "name"), NAMED, ids=lambda part: part.rpartition("/")[2])
def test_a_test_that_a_law_names_exists(file, name):
    assert name in functions_of(ROOT / file)


def test_every_law_names_a_test():
    without = [
        entry.splitlines()[0]
        for entry in re.split(r"^(?=\d+\. |#)", TEXT, flags=re.MULTILINE)
        if re.match(r"\d+\. ", entry) and "::test_" not in entry
    ]
    assert without == []
    assert len(numbered("law")) == 6 and numbered("invariant") == set(range(1, 37)) - {23}


@pytest.mark.parametrize("folder", ["tests", "hvd_sparse", "benchmarks", "docs/adr"])
def test_every_number_that_is_cited_is_on_the_page(folder):
    assert citations("laws 1 and 2, Invariant 99") >= {("law", 2), ("invariant", 99)}
    missing = {
        str(path.relative_to(ROOT)): sorted(absent)
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".md") and path != Path(__file__)
        if (
            absent := {
                each
                for each in citations(path.read_text(encoding="utf-8"))
                if each[1] not in numbered(each[0])
            }
        )
    }
    assert missing == {}
