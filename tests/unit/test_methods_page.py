"""docs/methods has a page for every named method, which names all options of its own."""

from __future__ import annotations

import importlib.util
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

from hvd_sparse.methods import METHODS, Methods

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "methods"
SECTIONS = {
    path.stem: path.read_text(encoding="utf-8")
    for path in FOLDER.glob("*.md")
    if path.stem != "index"
}
COMMON = {"density", "optimizer", "options", "params"}


def test_every_method_has_a_page_and_a_place_in_the_table():
    table = (FOLDER / "index.md").read_text(encoding="utf-8")
    assert set(SECTIONS) == set(METHODS)
    for method, paper in METHODS.items():
        assert any(
            f"[`{method}`]({method}.md)" in row and paper in row for row in table.split("\n")
        )


@pytest.mark.parametrize("method", METHODS)
def test_a_page_has_idea_formula_options_and_what_is_left_out(method):
    for head in ("Idea", "Formula", "Options", "Left out"):
        assert f"**{head}.**" in SECTIONS[method]


@pytest.mark.parametrize("method", METHODS)
def test_a_page_names_every_option_of_the_method(method):
    own = set(inspect.signature(getattr(Methods, method)).parameters) - COMMON
    for option in own:
        assert re.search(rf"`{option}\b|variant=", SECTIONS[method]), option
    assert ('`variant="paper"`' in SECTIONS[method]) is ("variant" in own)


@pytest.mark.parametrize("method", METHODS)
def test_a_docstring_says_what_is_left_out(method):
    words = inspect.getdoc(getattr(Methods, method))
    assert re.search(r"left out", words, re.IGNORECASE)


@pytest.fixture(scope="module")
def curves() -> ModuleType:
    """The module that draws a method's curve."""
    path = ROOT / "scripts" / "lib" / "curves.py"
    found = importlib.util.spec_from_file_location("curves", path)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.parametrize("method", METHODS)
def test_a_page_has_the_curve_and_the_cost_that_were_measured(method, curves):
    """At both densities where the method takes one, beside dense."""
    wants = "density" in inspect.signature(getattr(Methods, method)).parameters
    found = curves.curves_of(method)
    assert list(found) == ["dense", *(["0.01", "0.001"] if wants else [""])]
    assert len({tuple(step for step, _ in curve) for curve in found.values()}) == 1
    assert all(len(curve) >= 10 for curve in found.values())
    assert curves.drawn(method).count("<polyline") == len(found)
    rows = curves.table_of(method).splitlines()[2:]
    assert len(rows) == len(found) and all(row.count("|") == 8 for row in rows)
    assert all(float(row.split("|")[7]) > 0 for row in rows[1:]), "a worker's work is told"


def test_labels_of_curves_do_not_cover_each_other(curves):
    assert curves._apart([50.0, 48.0, 90.0]) == [62.0, 48.0, 90.0]
