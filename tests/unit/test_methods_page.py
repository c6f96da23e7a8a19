"""docs/methods has a page for every named method, which names all options of its own."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

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
def test_a_page_names_every_option_of_the_method(method):
    own = set(inspect.signature(getattr(Methods, method)).parameters) - COMMON
    for option in own:
        assert re.search(rf"`{option}\b|variant=", SECTIONS[method]), option
    assert ('`variant="paper"`' in SECTIONS[method]) is ("variant" in own)
