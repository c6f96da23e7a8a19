"""The guide names what there is, and its figures are those of the results."""

import ast
import dataclasses
import inspect
import re

import pytest
from blocks import PLACES, ROOT, all_blocks, blocks_for, commands_of, pages

from hvd_sparse import errors
from hvd_sparse.configuration import PARTS, TAKEN_BEFORE, Configuration

DOCS = ROOT / "docs"
CI_RUN = ROOT / ".ci" / "run"
BLOCKS = all_blocks()
NAMES = [
    name
    for name, each in inspect.getmembers(errors, inspect.isclass)
    if issubclass(each, errors.SparseError)
]


def test_troubleshooting_has_cause_and_remedy_of_every_error_once():
    page = (DOCS / "guide" / "troubleshooting.md").read_text(encoding="utf-8")
    table = page.partition("## Errors by name")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| .{10,} \| .{10,} \|$", table, re.MULTILINE)
    assert sorted(rows) == sorted(NAMES)


def test_the_page_of_options_has_every_common_option_with_its_default():
    page = (DOCS / "guide" / "options.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"^\| `(\w+)` \| (.+?) \| .+\|$", page, re.MULTILINE))
    fields = {each.name: each.default for each in dataclasses.fields(Configuration)}
    assert set(told) == {*fields, *TAKEN_BEFORE} - set(PARTS)
    for name, cell in told.items():
        if re.fullmatch(r"`.+`|None|\d+", cell):
            assert ast.literal_eval(cell.strip("`")) == fields[name], name


def test_the_index_of_results_has_every_page():
    index = (DOCS / "results" / "index.md").read_text(encoding="utf-8")
    pages = {path.name for path in (DOCS / "results").glob("*.md")} - {"index.md"}
    # One line each, with which the site begins the page.
    assert set(re.findall(r"^\* \[[^]]+\]\((\S+\.md)\): \w.+$", index, re.M)) == pages


def test_links_of_readme_lead_to_files():
    """``scripts/docs`` checks those of the site."""
    text = re.sub(r"```.*?```", "", (ROOT / "README.md").read_text("utf-8"), flags=re.DOTALL)
    links = re.findall(r"\]\(([^)\s#]+)", text)
    assert [each for each in links if "://" not in each and not (ROOT / each).exists()] == []
    assert any("://" not in each for each in links)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda each: each.name)
def test_a_block_of_code_says_where_it_runs_or_why_it_does_not(block):
    places = PLACES[block.language]
    is_run = block.action == "runs" and block.where in places
    assert is_run or (block.action == "shown" and len(block.where) > 5), (
        f"{block.name}: write <!-- runs: WHERE --> before it, one of {places}, or "
        "<!-- shown: why it is not run -->; tests/blocks.py says more"
    )


def commands_of_ci():
    lines = CI_RUN.read_text(encoding="utf-8").splitlines()
    parts = [
        each.strip() for line in lines for each in re.split(r"&&|\|\|", line.partition("#")[0])
    ]
    return {re.sub(r" --slice .*", "", each) for each in parts if each.startswith("scripts/")}


def is_run_by_ci(command):
    """CI takes every stack in turn, as ``tests/docker/test_recipes.py`` checks."""
    stack, script = re.fullmatch(r"(?:HVD_SPARSE_STACK=(\S+) )?(.*)", command).groups()
    has_stack = stack is None or (ROOT / "scripts" / "stacks" / f"{stack}.txt").exists()
    return script in commands_of_ci() and has_stack


@pytest.mark.parametrize("block", blocks_for("ci"), ids=lambda each: each.name)
def test_ci_runs_every_command_of_a_block_that_is_said_to_run_there(block):
    assert [each for each in commands_of(block) if not is_run_by_ci(each)] == []


def quotations():
    return [
        (page.name, source, figure)
        for page in pages()
        for source, figures in re.findall(r"<!-- quoted: (\S+): (.*?) -->", page.read_text("utf-8"))
        for figure in figures.split(" | ")
    ]


@pytest.mark.parametrize(("page", "source", "figure"), quotations(), ids=lambda part: part)
def test_a_figure_is_still_on_the_page_that_it_is_quoted_from(page, source, figure):
    words = f"{page} quotes {figure} from docs/{source}, which was measured again: correct {page}"
    assert figure in (DOCS / source).read_text(encoding="utf-8"), words
